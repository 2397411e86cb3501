package export

// PackBelow is Pack with another limit for MaxFileBytes, for tests of models in several files.
var PackBelow = pack
