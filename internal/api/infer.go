package api

// Prediction is what a model says of one input: a line of `avgpipectl predict -o json`.
type Prediction struct {
	Input string `json:"input"` // a text, two texts with a tab between them, or the path of an image
	// Text is the input with its hidden tokens filled in, of a masked language model.
	Text string `json:"text,omitempty"`
	// Guesses has one list for the input's class, or one for each hidden token in order; the likeliest comes first.
	Guesses [][]Guess `json:"guesses"`
}

// Guess is a class or a token, and how likely it is.
type Guess struct {
	ID          int     `json:"id"`
	Label       string  `json:"label"` // the class's name or number, or the token's text
	Probability float64 `json:"probability"`
}

// Translation is a line of `avgpipectl translate -o json`.
type Translation struct {
	Source string `json:"source"`
	Text   string `json:"text"`
}

// Scores is what `avgpipectl evaluate -o json` prints.
type Scores struct {
	Task    string  `json:"task"`
	Samples int     `json:"samples"`
	Targets int     `json:"targets"` // that are not ignored: tokens, or one for each sample of a classifier
	Loss    float64 `json:"loss"`    // mean, nats per target
	Metrics
	BLEU *float64 `json:"bleu"` // 0 to 100, of translations; else null
	// Classes has a line for each class of a classifier.
	Classes []ClassScore `json:"classes,omitempty"`
}

// ClassScore is how a classifier does on one class.
type ClassScore struct {
	Label     string  `json:"label"`
	Targets   int     `json:"targets"`   // samples of the class
	Predicted int     `json:"predicted"` // samples that it was predicted for
	Correct   int     `json:"correct"`   // both
	F1        float64 `json:"f1"`
}
