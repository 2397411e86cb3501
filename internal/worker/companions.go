package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// openCompanions finds what went with the model when the round that is restored was trained. Later rounds take the same along, whatever has
// become of the files that it was copied from. Where a part is lost, all of it is copied again.
func (h *host) openCompanions(context.Context) error {
	r := h.assignment.Restore
	if r == nil {
		return nil
	}
	here := slices.IndexFunc(h.assignment.Stages, func(p control.StagePlace) bool { return p.Node == h.assignment.Node })
	meta, err := h.metaOf(h.needs(r, here)[0].Digest) // all shards of a round name the same
	if err != nil {
		return fmt.Errorf("what goes with the model since round %d: %w", r.Round, err)
	}
	if files, err := export.ReadCompanions(control.ModelDir(h.assignment.Dir), meta.Companions); err == nil && meta.Companions != nil {
		h.companions, h.vocabulary = meta.Companions, files[export.TokenizerFile]
	}
	return nil
}

// writeCard writes what an exported model needs besides its weights, unless an earlier generation did.
func (h *host) writeCard(context.Context) (err error) {
	if h.companions != nil {
		return nil
	}
	c := export.Card{Task: h.model.Task, Sequence: h.sequence(), Data: h.assignment.Spec.Job.Data}
	c.Data.Labels = h.set.Labels
	files := map[string][]byte{}
	if path := h.tokenizerPath(&h.assignment.Spec.Job); path != "" {
		files[export.TokenizerFile] = h.vocabulary
		if err := h.readCompanions(filepath.Dir(path), export.TokenizerCompanions, files); err != nil {
			return &permanentError{fmt.Errorf("data.tokenizer: %w", err)}
		}
	}
	if from := h.assignment.Spec.Job.Model.From; from != "" {
		if err := h.readCompanions(from, export.ModelCompanions, files); err != nil {
			return &permanentError{fmt.Errorf("model.from: %w", err)}
		}
	}
	if h.companions, err = export.WriteCompanions(control.ModelDir(h.assignment.Dir), c, files); err != nil {
		return fmt.Errorf("leave what goes with the model: %w", err)
	}
	return nil
}

// readCompanions reads those of some files that a directory has.
func (h *host) readCompanions(dir string, names []string, files map[string][]byte) error {
	for _, name := range names {
		content, err := h.access.ReadFile(filepath.Join(dir, name), export.MaxConfigBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		files[name] = content
	}
	return nil
}
