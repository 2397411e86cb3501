// Package infer uses trained models on this machine: it continues texts, classifies, fills in hidden words, translates, and
// measures models on data. A model directory is what an export wrote (package export): the files of a Hugging Face model, with
// a tokenizer and a card that says how the data were read.
//
//	s, err := infer.Open(api.InferRequest{Model: "model"}) // the goroutine now belongs to the device's thread
//	defer s.Close()
//	err = s.Predict(ctx, 3, inputs, func(p api.Prediction) error { ... })
package infer

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Session is an open model. It belongs to the goroutine that opened it.
type Session struct {
	dir       string
	name      string // in messages
	model     *model.Model
	weights   *export.Weights
	device    device.Device
	tokenizer *tokenizer.Tokenizer // nil of models of images
	card      export.Card          // with the defaults of a job where the directory has none
	locked    bool                 // to the thread
}

// verbs are those of avgpipectl that fit a task.
var verbs = map[model.Task]string{
	model.Language: api.InferGenerate, model.MaskedLanguage: api.InferPredict, model.Classification: api.InferPredict,
	model.Images: api.InferPredict, model.Translation: api.InferTranslate,
}

// Open opens the model directory of a request, with all processors that the process may use. It locks the calling goroutine to its
// thread, until Close.
func Open(r api.InferRequest) (s *Session, err error) {
	s = &Session{dir: r.Model, name: cmp.Or(r.Name, "model "+r.Model), locked: true}
	runtime.LockOSThread() // the device's threads belong to this one
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.model, s.weights, err = export.Open(nil, s.dir); err != nil {
		return s, err
	}
	if s.model.Family == model.Python {
		return s, fmt.Errorf("%s is of modules in Python, which only jobs compute; load its %s into your own program, as docs/python-models.md shows", s.name, export.WeightsFile)
	}
	if err := s.openCard(); err != nil {
		return s, fmt.Errorf("%s: %w", s.name, err)
	}
	if s.device, _, err = pick.Open(cmp.Or(r.Device, "auto"), pick.Config{Threads: runtime.GOMAXPROCS(0)}); err != nil {
		return s, err
	}
	if t, ok := s.device.(device.Threaded); ok {
		return s, t.Attach()
	}
	return s, nil
}

// openCard finds out how text becomes tokens.
func (s *Session) openCard() error {
	card, found, err := export.ReadCard(nil, s.dir)
	if err != nil {
		return err
	}
	if found && card.Task != s.model.Task {
		return fmt.Errorf("%s is of the task %s, the model of %s", export.CardFile, card.Task, s.model.Task)
	}
	if !found {
		card = export.DefaultCard(s.model)
	}
	if len(card.Data.Labels) == 0 && s.model.Task == model.Classification {
		if card.Data.Labels, err = export.Labels(s.dir); err != nil {
			return err
		}
	}
	s.card = card
	if s.model.Task == model.Images {
		return nil
	}
	path, err := export.TokenizerOf(nil, s.dir, s.model)
	if err != nil {
		return err
	}
	s.tokenizer = tokenizer.Bytes()
	if path != job.TokenizerBytes {
		if s.tokenizer, err = tokenizer.Open(nil, path); err != nil {
			return err
		}
	}
	if n := s.tokenizer.Vocabulary; n > s.model.Vocabulary() {
		return fmt.Errorf("its tokenizer makes %d token ids, the model has %d", n, s.model.Vocabulary())
	}
	return nil
}

// Close frees what Open opened. A second Close does nothing.
func (s *Session) Close() error {
	var errs []error
	if s.device != nil {
		errs = append(errs, s.device.Close())
		s.device = nil
	}
	if s.weights != nil {
		errs = append(errs, s.weights.Close())
		s.weights = nil
	}
	if s.locked {
		runtime.UnlockOSThread()
		s.locked = false
	}
	return errors.Join(errs...)
}

func (s *Session) require(asks string, tasks ...model.Task) error {
	if slices.Contains(tasks, s.model.Task) {
		return nil
	}
	return &UsageError{fmt.Errorf("%s: it cannot %s, its task is %s; try avgpipectl %s", s.name, asks, s.model.Task, verbs[s.model.Task])}
}
