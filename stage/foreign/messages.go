package foreign

// Version is that of the protocol.
const Version = 4

// What this process asks for, and the answers. Places are offsets in the arena, in bytes.
type (
	helloRequest struct {
		Request string `json:"request"`
		Version int    `json:"version"`
		Threads int    `json:"threads"`
		Device  string `json:"device"`
		TF32    bool   `json:"tf32,omitempty"`
	}
	helloAnswer struct {
		Version int    `json:"version"`
		Python  string `json:"python"`
	}

	buildRequest struct {
		Request string `json:"request"`
		Program
		Seed uint64 `json:"seed"`
	}

	probeRequest struct {
		Request string `json:"request"`
		Probe
	}
	probeAnswer struct {
		Modules []Probed `json:"modules"`
	}

	// writeRequest asks for what parameters and running statistics are after build.
	writeRequest struct {
		Request string      `json:"request"`
		Tensors []writtenTo `json:"tensors"`
	}
	writtenTo struct {
		Name string `json:"name"`
		At   int    `json:"at"`
	}

	// bindRequest names a set of parameters: of each module its parameters, with their gradients, and then its running statistics, with what they are after
	// a forward.
	bindRequest struct {
		Request    string    `json:"request"`
		Set        int       `json:"set"`
		First      int       `json:"first"`
		Last       int       `json:"last"` // behind the last
		Parameters [][2]*int `json:"parameters"`
	}

	forwardRequest struct {
		Request string   `json:"request"`
		Set     int      `json:"set"`
		First   int      `json:"first"`
		Seeds   []uint64 `json:"seeds"` // of each module
		Inputs  []tensor `json:"inputs"`
		Outputs []tensor `json:"outputs,omitempty"`
		Loss    *lossOf  `json:"loss,omitempty"` // instead of outputs
		Keep    *int     `json:"keep,omitempty"`
		Train   bool     `json:"train"`
		Begins  bool     `json:"begins"`
		Changed bool     `json:"changed,omitempty"` // parameters of the set
		Count   bool     `json:"count"`
		Call    int      `json:"call"`
	}
	// dropRequest says that no backward follows a forward.
	dropRequest struct {
		Request string `json:"request"`
		Keep    int    `json:"keep"`
	}
	backwardRequest struct {
		Request  string   `json:"request"`
		Keep     int      `json:"keep"`
		DOutputs []*place `json:"doutputs"`
		DInputs  []*place `json:"dinputs"`
		Weight   float32  `json:"weight"` // of a loss
		Call     int      `json:"call"`
	}
	// batchRequest asks for several things, one after the other.
	batchRequest struct {
		Request  string `json:"request"`
		Requests []any  `json:"requests"`
	}
	// againRequest repeats a forward or a backward that had this number as its call.
	againRequest struct {
		Request string   `json:"request"`
		Call    int      `json:"call"`
		Seeds   []uint64 `json:"seeds,omitempty"`
		Begins  bool     `json:"begins"`
		Changed bool     `json:"changed,omitempty"`
	}
	// gatherRequest asks for the gradients of a set that the process has apart.
	gatherRequest struct {
		Request string `json:"request"`
		Set     int    `json:"set"`
	}
	// lockRequest says that memory crosses, which the process may page-lock until an unlockRequest: then it is freed.
	lockRequest struct {
		Request string `json:"request"`
		At      int    `json:"at"`
		Bytes   int    `json:"bytes"`
	}
	unlockRequest struct {
		Request string `json:"request"`
		At      int    `json:"at"`
	}
	// lossOf asks for the loss of the user's function, a number that goes to At.
	lossOf struct {
		Targets []tensor `json:"targets"`
		At      int      `json:"at"`
	}
	tensor struct {
		At       int    `json:"at"`
		Shape    []int  `json:"shape"`
		Type     string `json:"type"`
		Gradient bool   `json:"gradient"`
	}
	place struct {
		At int `json:"at"`
	}

	// failure is an answer that is none.
	failure struct {
		Error *ProgramError `json:"error"`
	}
)

// Program is the user's: a function that returns modules.
type Program struct {
	Path     string         `json:"path"`     // of its file
	Function string         `json:"function"` // of the file
	Args     map[string]any `json:"args"`     // by name
	Loss     string         `json:"loss"`     // a function of the file that gives the loss of logits and targets; "": none
	// Cut names modules within the one that the function returns: it is cut in front of each. Inputs are what the first module is given, as in a Probe: for
	// modules that are made for their inputs, or that are cut.
	Cut    []string     `json:"cut,omitempty"`
	Inputs []ProbeInput `json:"inputs,omitempty"`
	// Samples are what the first module is given, and the loss, where the program makes them; nil: tensors cross.
	Samples *Samples `json:"samples,omitempty"`
}

// Samples is a function of the same file that returns samples: what crosses are their numbers.
type Samples struct {
	Function string         `json:"function"`
	Args     map[string]any `json:"args"`
	Collate  string         `json:"collate"` // a function that makes a micro-batch of samples; "": they are stacked
}

// Built is what the function returned.
type Built struct {
	Framework string        `json:"framework"` // "torch 1.13.1"
	Modules   []BuiltModule `json:"modules"`
	Samples   BuiltSamples  `json:"samples"`
	Copies    bool          `json:"copies"` // the process computes with copies of parameters, and has gradients of its own
	Locks     bool          `json:"locks"`  // the process wants to be told which memory crosses
}

// BuiltSamples is how many samples there are to train on, and to evaluate on.
type BuiltSamples struct {
	Train   int `json:"train"`
	HeldOut int `json:"held_out"`
}

// BuiltModule is a module: its name is the one that it has in the whole, as have its tensors'.
type BuiltModule struct {
	Name       string           `json:"name"`
	Type       string           `json:"type"`
	Parameters []BuiltParameter `json:"parameters"`
	Buffers    []BuiltBuffer    `json:"buffers"` // running statistics
}

// BuiltParameter is a parameter of a module.
type BuiltParameter struct {
	Name    string `json:"name"`
	Shape   []int  `json:"shape"`
	TiedTo  string `json:"tied_to"` // the name under which the same parameter was met first
	Trained bool   `json:"trained"`
}

// BuiltBuffer is a running statistic of a module.
type BuiltBuffer struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
}

// Probe is a dry run of each module, on made-up inputs of the first.
type Probe struct {
	Inputs []ProbeInput `json:"inputs"`
	Repeat int          `json:"repeat"`
	Seed   uint64       `json:"seed"`
	// Targets are what the user's loss is tried with, if any; an i32 of limit 0 is below the last dimension of what the last module gives.
	Targets []ProbeInput `json:"targets,omitempty"`
	Ignores bool         `json:"ignores,omitempty"` // some of the first target do not count: they are -1
}

// ProbeInput is an input of the first module. Its first dimension is that of the samples.
type ProbeInput struct {
	Shape []int  `json:"shape"`
	Type  string `json:"type"`  // "f32" or "i32"
	Limit int    `json:"limit"` // bounds the values of an i32
	// Gradient says that a backward has to give that of this input, an f32 that layers in front of the modules compute.
	Gradient bool `json:"gradient,omitempty"`
}

// Probed is what a module did in a dry run.
type Probed struct {
	Inputs         []ProbedTensor `json:"inputs"`
	Outputs        []ProbedTensor `json:"outputs"`
	Differentiable []bool         `json:"differentiable"` // each output
	SavedBytes     int            `json:"saved_bytes"`    // what its backward needs, parameters aside
	Forward        float64        `json:"forward_seconds"`
	Backward       float64        `json:"backward_seconds"`
}

// ProbedTensor is a tensor that crosses from module to module.
type ProbedTensor struct {
	Shape []int  `json:"shape"`
	Type  string `json:"type"`
}
