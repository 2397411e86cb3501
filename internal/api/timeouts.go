package api

// Timeout is the bound of something that the daemon waits for.
type Timeout struct {
	Name   string  `json:"name"`
	ValueS float64 `json:"value_s"`
	From   string  `json:"from"` // what it is derived from, for people
	Then   string  `json:"then"` // what happens once it is over, for people
}
