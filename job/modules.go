package job

import "strings"

// DefaultInterpreter is what Model.Interpreter stands for where it is empty.
const DefaultInterpreter = "/usr/bin/python3"

// checkPython checks what stands beside modules of the user's own.
func (c *checker) checkPython() {
	m := c.Model
	if path, function := m.Program(); path == "" || function == "" {
		c.refuse("model.python", m.Python+":build", "model.python is %q; it wants a file of Python and, behind a colon, a function in it", m.Python)
	}
	switch {
	case m.Config != nil && m.From != "":
		c.refuse("model.config", "", "model.config stands beside model.from, whose config.json already says it; remove one of them")
	case m.Config != nil && m.Family == "":
		c.refuse("model.config", "model.args", "model.config stands beside model.python without model.family; add the family, whose layers then are in front of the modules, or say model.args, which the function is given")
	case m.Family != "" && m.Config == nil && m.From == "":
		c.refuse("model.family", "", `model.family stands beside model.python without model.config; add that config, and the layers of the family are in front of the modules, or remove model.family`)
	}
	if c.Data.Samples != "" {
		c.checkSamples()
		return
	}
	switch images := c.ModuleTask() == "images"; {
	case images && len(m.Image) == 0:
		c.refuse("model.image", "[1, 28, 28]", `missing key "model.image": channels, rows and columns of the images that model.python learns from`)
	case !images && len(m.Image) > 0:
		c.refuse("model.image", "", "model.image is of the task images, and the task is %s; remove it", c.ModuleTask())
	case images && m.Vocabulary > 0:
		c.refuse("model.vocabulary", "", "model.vocabulary is of texts, and the task is images; remove it")
	case !images && c.Data.Sequence == 0:
		c.refuse("data.sequence", "64", `missing key "data.sequence": how many positions a sample of model.python has`)
	}
}

// checkSamples checks what stands beside samples that the user's program makes.
func (c *checker) checkSamples() {
	for _, key := range []string{"data.files", "data.validation", "data.format", "model.task", "model.vocabulary", "model.image"} {
		if c.Has(key) {
			c.refuse(key, "", "%s stands beside data.samples, whose function says what samples are; remove one of them", key)
		}
	}
	if c.Model.Loss == "" {
		c.refuse("model.loss", "loss", `missing key "model.loss": a function of the file of model.python that gives the loss of what the modules give and of the targets of data.samples`)
	}
}

// Program is the file that model.python names, and the function.
func (m *Model) Program() (path, function string) {
	at := strings.LastIndexByte(m.Python, ':')
	if at < 0 {
		return m.Python, ""
	}
	return m.Python[:at], m.Python[at+1:]
}

// ModuleTask is what the modules of model.python learn.
func (j *Job) ModuleTask() string {
	switch {
	case j.Data.Samples != "":
		return "samples"
	case j.Model.Task != "":
		return j.Model.Task
	case j.Data.Format == "idx" || j.Data.Format == "images":
		return "images"
	}
	return "language"
}
