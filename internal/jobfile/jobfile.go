// Package jobfile checks a job file as far as it can without other files and without a daemon: job.Parse, the names that schedules,
// methods and model families have, and the family's config. The command line and admission both read job files with it.
package jobfile

import (
	"errors"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Parse reads a job file as job.Parse does; lookup finds the submitter's variables. The document has all that is wrong. The job is nil
// where job.Parse refuses it, the model where it cannot be built, or the job starts from a directory or is of modules in Python.
func Parse(file string, source []byte, set []string, lookup func(name string) (string, bool)) (*job.Job, *model.Model, *strictyaml.Document) {
	j, at, err := job.Parse(file, source, set, job.Environment{
		Lookup: lookup, Families: model.Families(), Schedules: schedule.Names(), Methods: elastic.Settings(), Check: checkAveraging,
	})
	if err != nil || j.Model.From != "" || j.Model.Python != "" && j.Model.Config == nil {
		return j, nil, at
	}
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if j.Model.Python != "" { // modules follow
		if err == nil {
			err = m.CheckFront()
		}
		refuse(at, j, err)
		return j, nil, at
	}
	if err == nil {
		m = Train(at, j, m)
	}
	refuse(at, j, err)
	return j, m, at
}

// refuse says what is wrong with the model of a job, if anything.
func refuse(at *strictyaml.Document, j *job.Job, err error) {
	field, ofField := errors.AsType[*model.FieldError](err)
	switch {
	case err == nil:
	case !ofField:
		at.Refuse("model.config", "", "%v", err)
	case field.Field == "family":
		at.Refuse("model.family", field.Nearest, "model.family is %v beside model.python; allowed is %s", field.Found, field.Allowed)
	case field.Unknown:
		var names []string
		for _, f := range model.Fields(j.Model.Family) {
			names = append(names, f.Name)
		}
		at.UnknownKey("model.config", field.Field, "", names)
	default:
		at.Refuse("model.config."+field.Field, field.Nearest, "model.config.%s is %v; allowed is %s", field.Field, field.Found, field.Allowed)
	}
}

// Train is what a job trains of a model; nil where the document then has what is wrong.
func Train(at *strictyaml.Document, j *job.Job, m *model.Model) *model.Model {
	m, err := m.Train(Training(j))
	if field, ok := errors.AsType[*model.FieldError](err); ok {
		at.Refuse(field.Field, field.Nearest, "%s is %q; it wants %s", field.Field, field.Found, field.Allowed)
	} else if err != nil {
		at.Refuse("train", "", "%v", err)
	}
	return m
}

// Training is what a job says about it.
func Training(j *job.Job) model.Training {
	t := model.Training{Only: j.Train.Only}
	if l := j.LoRA; l.Targets != nil {
		t.LoRA = &model.LoRA{Rank: l.Rank, Alpha: l.Alpha, Dropout: l.Dropout, Targets: l.Targets}
	}
	return t
}
