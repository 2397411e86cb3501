package api

// InferRequest says what to do with an exported model: `avgpiped infer` gets it from avgpipectl, as JSON. The flags of avgpipectl have the
// defaults; a number that is left out is 0.
type InferRequest struct {
	Verb   string `json:"verb"`
	Model  string `json:"model"`            // its directory
	Name   string `json:"name"`             // what messages call it: "job 4 (spam)"
	Device string `json:"device,omitempty"` // what computes: auto (the default), cpu or ref

	Prompt      string  `json:"prompt,omitempty"` // of generate; empty: the start of a document
	Tokens      int     `json:"tokens,omitempty"` // at most
	Temperature float64 `json:"temperature,omitempty"`
	TopK        int     `json:"top_k,omitempty"`
	TopP        float64 `json:"top_p,omitempty"`
	Seed        uint64  `json:"seed,omitempty"`
	// Stop are strings that end the text; it ends before the first of them.
	Stop      []string `json:"stop,omitempty"`
	Precision string   `json:"precision,omitempty"` // of products: f32 (the default) or bf16

	Top  int `json:"top,omitempty"`  // guesses of each class or word, of predict
	Beam int `json:"beam,omitempty"` // translations that are pursued at once, of translate, and of evaluate for BLEU

	Files   []string `json:"files,omitempty"`    // of evaluate, as in a job file; relative paths start at the working directory
	HeldOut bool     `json:"held_out,omitempty"` // only the part that a job with these files holds out; else all of them
	Samples int      `json:"samples,omitempty"`  // at most; 0: all
}

// The verbs of an InferRequest.
const (
	InferGenerate  = "generate"
	InferPredict   = "predict"
	InferTranslate = "translate"
	InferEvaluate  = "evaluate"
)

// Generated is a line that `avgpiped infer` prints of a generation: a piece of the text, or at the end what was done. A piece may end within a
// character.
type Generated struct {
	Text []byte      `json:"text,omitempty"`
	End  *Generation `json:"end,omitempty"`
}

// Generation is what `avgpipectl generate -o json` prints.
type Generation struct {
	Prompt string `json:"prompt"`
	Text   string `json:"text"`
	// FinishReason is FinishStop, FinishLength or FinishInterrupted.
	FinishReason string `json:"finish_reason"`
	PromptTokens int    `json:"prompt_tokens"`
	Tokens       int    `json:"tokens"` // generated
	// PromptSeconds is the time until the first token, the model being loaded.
	PromptSeconds float64 `json:"prompt_seconds"`
	// TokensPerSecond is the rate after the first token; 0 where there is none.
	TokensPerSecond float64 `json:"tokens_per_second"`
}

// Why a generation ended.
const (
	FinishStop        = "stop"        // the document ended, or a string of InferRequest.Stop came
	FinishLength      = "length"      // there are InferRequest.Tokens
	FinishInterrupted = "interrupted" // by a signal
)

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
