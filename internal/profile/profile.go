package profile

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// warmUp is how many batches of a run are not watched: memory is slow when it is touched first, and several pipelines
// use the second of two messages to the center in the second for the first time.
func warmUp(pipelines int) int { return min(pipelines, 2) }

// How much a profile measures.
const (
	profileBatches  = 3 // of each run that are watched, at least
	mostProfiled    = 50
	layeredMicros   = 4 // of a run with a stage for each layer, at the middle size
	fewMicros       = 2 // at the others
	waitingQuantile = 0.25
)

// profile measures a target by three kinds of run on its devices:
//
//   - layered, at each size: every layer is a stage of its own, so that each pass of each layer is an event. That says what part
//     of its device's time a layer takes, and what the halves of its backward are. The layers are shared out by their
//     floating-point operations;
//   - merged, at each size: one stage a device, as in training, cut by what layers were seen to take. That says how long all
//     layers of a device take together, which is less than the sum of the parts: they share buffers, and what one leaves in the
//     caches the next one finds;
//   - contended, at each size, beside the merged run: with two pipelines, which average, take caches and memory bandwidth from each
//     other, and leave the devices less idle.
func (s *Session) profile(ctx context.Context, space *tuner.Space, target tuner.Target, notes *[]string) (*tuner.Profile, error) {
	p := s.subject.Skeleton(target)
	m := &measurement{
		profile: p, guess: s.subject.guess(target), batch: s.config.Request.Spec.Job.Train.Batch, layers: newMeasured(len(p.Layers)), stages: newMeasured(target.Devices), contended: newMeasured(target.Devices),
	}
	var err error
	if m.shares, err = s.subject.shareOut(target); err != nil {
		return nil, err
	}
	sizes := s.subject.sizes(*space)
	m.middle = sizes[len(sizes)/2]
	for _, samples := range s.subject.layeredSizes(sizes) {
		if err := s.read(ctx, m, s.subject.layered(target, m.shares, samples, samples == m.middle), notes); err != nil {
			return nil, err
		}
		if err := s.afford(space, target, m, samples); err != nil {
			return nil, err
		}
	}
	if err := s.afford(space, target, m, m.middle); err != nil { // where nothing was read of layers
		return nil, err
	}
	m.homes = m.shares
	if m.shares, err = m.cut(); err != nil {
		return nil, err
	}
	pipelines, several := s.alone(target), s.subject.several(target)
	for _, samples := range sizes {
		alone, together := s.subject.merged(target, m.shares, samples, pipelines), s.subject.contended(target, m.shares, samples)
		alone.trial.Batches = m.batches(samples, s.config.Watch)
		together.trial.Batches = alone.trial.Batches
		if err := s.read(ctx, m, alone, notes); err != nil {
			return nil, err
		}
		if pipelines == 1 && several {
			if err := s.readContended(ctx, m, alone, together, notes); err != nil {
				return nil, err
			}
		}
	}
	if err := m.fit(); err != nil {
		return nil, err
	}
	return p, p.Validate()
}

// batches is how many of a size are watched: as many as take half of Config.Watch by what layers took, since every size is read twice.
func (m *measurement) batches(samples int, watch time.Duration) int {
	each := m.layers.total(samples) / float64(len(m.shares)) * float64(m.batch/samples)
	if each == 0 || watch < 0 {
		return profileBatches
	}
	return max(profileBatches, int(min(mostProfiled, math.Ceil(watch.Seconds()/2/each))))
}

// read runs one reading. One that fails, since it is too large for a device, for example, becomes a note where the profile can do
// without it.
func (s *Session) read(ctx context.Context, m *measurement, r reading, notes *[]string) error {
	if err := s.subject.fitToMemory(&r); err != nil {
		return err
	}
	result, err := s.repeatIfNoisy(ctx, r)
	into := map[kind]*measured{layered: m.layers, merged: m.stages, contended: m.contended}[r.kind]
	if err != nil {
		err = fmt.Errorf("measure micro-batches of %s with %s: %w", words.Count(r.samples, "sample"), words.Count(r.pipelines, "pipeline"), err)
		if ctx.Err() == nil && (r.kind != merged || len(into.passes[schedule.Forward][0]) > 0) {
			*notes = append(*notes, err.Error())
			return nil
		}
		return err
	}
	into.read(r, result)
	if r.kind == merged {
		m.profile.Samples = append(m.profile.Samples, r.samples)
	}
	for d := range m.profile.Devices {
		m.profile.Devices[d].Name = result.Devices[d].About
	}
	return nil
}
