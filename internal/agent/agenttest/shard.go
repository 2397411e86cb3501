package agenttest

import (
	"encoding/json"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
)

// makeShard makes a stage's shard of a round. Stage 0 has all the model's tensors, so that the round can be exported; every
// value is the round's number, so that one can tell rounds apart.
func makeShard(a control.Assignment, k int, round uint64) (*shard.Header, []float32, error) {
	meta, elements := export.ShardMeta{Layers: [2]int{k, k + 1}}, 1
	if k == 0 {
		m, err := model.Build(a.Spec.Job.Model.Family, a.Spec.Job.Model.Config)
		if err != nil {
			return nil, nil, fmt.Errorf("build the model: %w", err)
		}
		elements = 0
		for _, p := range m.Params() {
			if p.TiedTo == "" {
				meta.Tensors = append(meta.Tensors, stage.Tensor{Name: p.Name, Shape: p.Shape, Offset: elements})
				elements += p.Len()
			}
		}
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the shard's meta: %w", err)
	}
	h := &shard.Header{
		Job: a.JobID, Generation: a.Generation, Round: round, Stage: k, Stages: len(a.Stages), Meta: text,
		Vectors: []shard.Vector{{Name: shard.CenterVector, Elements: elements}},
	}
	for i := range int(a.Spec.Job.Pipelines) {
		h.Cursors = append(h.Cursors, shard.Cursor{Pipeline: i, Step: round * uint64(a.Spec.Job.Averaging.Tau)})
	}
	values := make([]float32, elements)
	for i := range values {
		values[i] = float32(round)
	}
	return h, values, nil
}
