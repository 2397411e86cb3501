package api

// Accounting says which samples stand behind a job's last committed round: what `avgpipectl audit JOB -o json` prints. All samples of a run
// are numbered in the order in which they are consumed, epoch after epoch.
type Accounting struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Round   uint64 `json:"round"`   // the last committed one; 0: none
	Samples uint64 `json:"samples"` // that it says all pipelines have consumed
	Epoch   uint64 `json:"epoch"`   // samples in one; 0 where nobody said
	// Exact says that the samples are 0 to Samples-1, each once. Faults has what is not so.
	Exact     bool               `json:"exact"`
	Faults    []string           `json:"faults"`
	Batches   uint64             `json:"batches"` // of all pipelines
	Checked   uint64             `json:"checked"` // of these, the ones that were held one by one against the order of samples
	Stretches []AccountedStretch `json:"stretches"`
}

// AccountedStretch is a run of rounds with the same pipelines and batch. Rounds and steps from is exclusive, samples to is.
type AccountedStretch struct {
	Generation uint64             `json:"generation"` // the first one of it
	FromRound  uint64             `json:"from_round"`
	ToRound    uint64             `json:"to_round"`
	FromSample uint64             `json:"from_sample"`
	ToSample   uint64             `json:"to_sample"`
	Begin      *SamplePlace       `json:"begin"` // of FromSample; null where the length of an epoch is not known
	End        *SamplePlace       `json:"end"`   // of the last one
	Batch      uint64             `json:"batch"` // samples of a pipeline in a step
	Steps      uint64             `json:"steps"` // of each pipeline
	Pipelines  []AccountedBatches `json:"pipelines"`
}

// SamplePlace is a sample's place: the epoch, from 0, and its place in the order of that epoch.
type SamplePlace struct {
	Epoch uint64 `json:"epoch"`
	Index uint64 `json:"index"`
}

// AccountedBatches are the samples of one pipeline: Batch consecutive ones from First on, and again after every Stride samples, Steps times.
type AccountedBatches struct {
	Pipeline int    `json:"pipeline"`
	First    uint64 `json:"first"`
	Stride   uint64 `json:"stride"`
	Samples  uint64 `json:"samples"` // in all
}
