package pipeline

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// tokens is a Source of random token ids below 11.
type tokens struct{ pipeline int }

func (s tokens) Fill(step uint64, micro int, input, labels []byte) error {
	for i, b := range [][]byte{input, labels} {
		rng := rand.New(rand.NewPCG(step*1000+uint64(micro), uint64(s.pipeline*2+i)))
		for j := 0; j+4 <= len(b); j += 4 {
			binary.NativeEndian.PutUint32(b[j:], rng.Uint32N(11))
		}
	}
	return nil
}

const modelMicros = 6

// smallGPT2 is modelConfig's, with tied embeddings.
var smallGPT2 = map[string]any{"n_layer": 6, "n_head": 2, "n_embd": 12, "n_positions": 6, "vocab_size": 11, "tie_word_embeddings": true}

// onHost and queued open devices without and with a queue.
func onHost() device.Device { return ref.New() }
func queued() device.Device { return stagetest.NewLate() }

// modelConfig trains a small GPT-2 with tied embeddings by a plan on devices that open returns, with boundaries in one type. It adds what OnStep
// and OnEvaluated say to the log.
func modelConfig(t *testing.T, open func() device.Device, grid schedule.Plan, pipelines int, boundary device.Type, log *modelLog) Config {
	t.Helper()
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: pipelines})
	if err != nil {
		t.Fatal(err)
	}
	return modelConfigBy(t, open, grid, method, boundary, log)
}

// modelConfigBy is modelConfig by another method. change, if there is one, sets what stages are made with.
func modelConfigBy(
	t *testing.T, open func() device.Device, grid schedule.Plan, method elastic.Method, boundary device.Type, log *modelLog, change ...func(*stage.Config),
) Config {
	t.Helper()
	stages := grid.Stages()
	m, err := model.Build("gpt2", smallGPT2)
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := stage.Split(m.Costs(layer.Size{B: 1, T: 6}), stages)
	if err != nil {
		t.Fatal(err)
	}
	log.steps = map[[2]uint64]StepReport{}
	c := Config{
		Plan: grid, MicroBatches: modelMicros, Pipelines: method.Config().Pipelines, Method: method, ClipNorm: 0.5,
		LearningRate: func(uint64) float32 { return 0.01 }, FinalRound: 6,
		Evaluation: &EvaluationConfig{MicroBatches: 3, Due: func(round uint64) bool { return round%2 == 0 }},
		Events: Events{
			OnStep: func(s StepReport) {
				log.mu.Lock()
				defer log.mu.Unlock()
				log.steps[[2]uint64{uint64(s.Pipeline), s.Step}] = s
			},
			OnEvaluated: func(e Evaluation) { log.evals = append(log.evals, e) },
		},
	}
	devices := make([]device.Device, len(grid))
	for row := range devices {
		devices[row] = open()
		t.Cleanup(func() {
			if err := devices[row].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	apart := func(a, b int) bool { return copied(devices[a], devices[b]) }
	inputs, outputs := schedule.Handed(grid, func(a, b int) bool { return device.Share(devices[a], devices[b]) || apart(a, b) })
	landed, gradients := schedule.Landed(grid, apart)
	c.Queues = func(row int) *device.Queues { return device.QueuesOf(devices[row]) }
	placement, slots, halves := grid.Placement(), schedule.InFlightByStage(grid), schedule.HalvesByStage(grid)
	for k, r := range ranges {
		of := stage.Config{
			Device: devices[placement[k]], Model: m, Range: r, Index: k, Count: stages, Samples: 1, Predicts: method.Needs().Predicts,
			Slots: slots[k], WeightSlots: halves[k], HandedInputs: inputs[k], HandedOutputs: outputs[k], Seed: 5, Boundary: boundary,
			LandedInputs: landed[k], LandedGradients: gradients[k],
		}
		for _, set := range change {
			set(&of)
		}
		shape, err := of.Shape()
		if err != nil {
			t.Fatal(err)
		}
		c.Stages = append(c.Stages, StageConfig{
			Index: k, Layout: Layout(m.Layers, r.From, r.To, shape.Parameters),
			Build:            func(int) (stage.Stage, error) { return stage.New(of) },
			Source:           func(p int) Source { return tokens{p} },
			EvaluationSource: tokens{99},
		})
	}
	return c
}

// modelLog is what a training of modelConfig reports.
type modelLog struct {
	mu    sync.Mutex
	steps map[[2]uint64]StepReport
	evals []Evaluation
}

// trainModel returns losses, gradient norms and evaluations.
func trainModel(t *testing.T, grid schedule.Plan, pipelines int) []float64 {
	t.Helper()
	return trainModelOn(t, onHost, grid, pipelines)
}

// trainModelOn is trainModel on devices that open returns.
func trainModelOn(t *testing.T, open func() device.Device, grid schedule.Plan, pipelines int) []float64 {
	t.Helper()
	var log modelLog
	g, err := New(modelConfig(t, open, grid, pipelines, device.F32, &log))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return log.numbers(pipelines)
}

// numbers are the losses and gradient norms of all steps, and the evaluations.
func (l *modelLog) numbers(pipelines int) (numbers []float64) {
	for p := range uint64(pipelines) {
		for step := range uint64(6) {
			s := l.steps[[2]uint64{p, step}]
			numbers = append(numbers, s.Loss, s.GradientNorm)
		}
	}
	for _, e := range l.evals {
		numbers = append(numbers, e.Score.MeanLoss(), float64(e.Round))
	}
	return numbers
}

// TestAModelTrainsToTheSameBitsByEverySchedule holds every plan without updates to one stage that runs all forwards, then all
// backwards. Each stage adds up its gradients in the order of its weight halves, which is that of the micro-batches in all of
// these plans, so no rounding differs.
func TestAModelTrainsToTheSameBitsByEverySchedule(t *testing.T) {
	for _, pipelines := range someIfRaced([]int{1, 2}, 2) {
		want := trainModel(t, plan(t, "gpipe", 1, modelMicros), pipelines)
		if n := len(want); n != 2*6*pipelines+2*4 {
			t.Fatalf("%d numbers", n)
		}
		for _, devices := range someIfRaced([]int{1, 2, 3, 4}, 3) {
			for _, name := range schedule.Names() {
				if _, updates := asynchronous[name]; updates {
					continue
				}
				t.Run(fmt.Sprintf("N%d_K%d_%s", pipelines, devices, name), func(t *testing.T) {
					t.Parallel()
					if got := trainModel(t, plan(t, name, devices, modelMicros), pipelines); !slices.Equal(got, want) {
						t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
					}
				})
			}
		}
	}
}

// TestAModelTrainsToTheSameBitsOnDevicesWithQueues gives operations to devices that run them as late as they may: who reads what an op makes
// before its event, or changes what it still reads, finds other bits.
func TestAModelTrainsToTheSameBitsOnDevicesWithQueues(t *testing.T) {
	for _, pipelines := range someIfRaced([]int{1, 2}, 2) {
		want := trainModel(t, plan(t, "gpipe", 1, modelMicros), pipelines)
		for _, name := range schedule.Names() {
			if _, updates := asynchronous[name]; updates {
				continue
			}
			t.Run(fmt.Sprintf("N%d_%s", pipelines, name), func(t *testing.T) {
				t.Parallel()
				if got := trainModelOn(t, queued, plan(t, name, 2, modelMicros), pipelines); !slices.Equal(got, want) {
					t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
				}
			})
		}
	}
}

// TestAnotherOrderOfBackwardsDiffersByRoundingAlone runs a plan of the user's own whose last stage takes backwards in another order:
// gradients are sums of other orders.
func TestAnotherOrderOfBackwardsDiffersByRoundingAlone(t *testing.T) {
	grid, err := schedule.Parse(`
		F0 F1 F2 F3 F4 F5 B5 B0 B4 B1 B3 B2
		F0 F1 F2 F3 F4 F5 I5 I0 I4 W0 W5 W4 I1 I3 I2 W3 W2 W1`)
	if err != nil {
		t.Fatal(err)
	}
	for _, pipelines := range []int{1, 2} {
		found, want := trainModel(t, grid, pipelines), trainModel(t, plan(t, "gpipe", 2, modelMicros), pipelines)
		if slices.Equal(found, want) {
			t.Error("the other order has the same bits")
		}
		worst := 0.0
		for i, w := range want {
			worst = max(worst, math.Abs(found[i]-w)/max(math.Abs(w), 1))
		}
		t.Logf("N=%d: largest relative difference %.3g", pipelines, worst)
		if !(worst <= 1e-6) {
			t.Errorf("N=%d: losses, norms and evaluations\n%v, want\n%v", pipelines, found, want)
		}
	}
}

// beside opens queues over one memory.
func beside() func() device.Device {
	var first *stagetest.Late
	return func() device.Device {
		if first == nil {
			first = stagetest.NewLate()
			return first
		}
		return first.Beside()
	}
}

// severalQueues opens devices of so many queues, which share nothing.
func severalQueues(n int) func() device.Device {
	return func() device.Device {
		first := stagetest.NewLate()
		all := []device.Queue{first}
		for len(all) < n {
			all = append(all, first.Beside())
		}
		return device.NewQueues(all)
	}
}

// TestPipelinesOnQueuesOfTheirOwnTrainToTheSameBits runs the pipelines of a device beside each other, on as many queues or fewer.
func TestPipelinesOnQueuesOfTheirOwnTrainToTheSameBits(t *testing.T) {
	for _, pipelines := range someIfRaced([]int{1, 2, 3}, 3) {
		want := trainModel(t, plan(t, "gpipe", 1, modelMicros), pipelines)
		for _, devices := range someIfRaced([]int{1, 2}, 2) {
			for _, name := range []string{"1f1b", "interleaved", "zb-h1"} {
				for queues := 1; queues <= pipelines+1; queues++ {
					t.Run(fmt.Sprintf("N%d_%s_K%d_on_%d", pipelines, name, devices, queues), func(t *testing.T) {
						t.Parallel()
						got := trainModelOn(t, severalQueues(queues), plan(t, name, devices, modelMicros), pipelines)
						if !slices.Equal(got, want) {
							t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
						}
					})
				}
			}
		}
	}
}

// handing counts the boundaries that cross in device memory and in host memory.
type handing struct {
	*stage.Computed
	device, host *atomic.Int64
}

func (h handing) Forward(m stage.Micro, input stage.Boundary, labels []byte, output stage.Boundary) error {
	h.count(output)
	return h.Computed.Forward(m, input, labels, output)
}

func (h handing) Backward(m stage.Micro, part stage.Part, doutput, dinput stage.Boundary) error {
	h.count(dinput)
	return h.Computed.Backward(m, part, doutput, dinput)
}

func (h handing) count(b stage.Boundary) {
	switch {
	case !b.Memory.Absent():
		h.device.Add(1)
	case b.Host != nil:
		h.host.Add(1)
	}
}

// TestStagesThatShareMemoryHandBoundariesOver trains by every schedule on queues over one memory, to the bits of stages that share nothing.
func TestStagesThatShareMemoryHandBoundariesOver(t *testing.T) {
	for _, pipelines := range someIfRaced([]int{1, 2}, 2) {
		want := trainModel(t, plan(t, "gpipe", 1, modelMicros), pipelines)
		for _, devices := range someIfRaced([]int{1, 2, 3}, 3) {
			for _, name := range schedule.Names() {
				if _, updates := asynchronous[name]; updates {
					continue
				}
				t.Run(fmt.Sprintf("N%d_%s_K%d", pipelines, name, devices), func(t *testing.T) {
					t.Parallel()
					var log modelLog
					var inDevice, inHost atomic.Int64
					grid := plan(t, name, devices, modelMicros)
					c := modelConfig(t, beside(), grid, pipelines, device.F32, &log)
					for i := range c.Stages {
						build := c.Stages[i].Build
						c.Stages[i].Build = func(p int) (stage.Stage, error) {
							s, err := build(p)
							if err != nil {
								return nil, err
							}
							return handing{s.(*stage.Computed), &inDevice, &inHost}, nil
						}
					}
					g, err := New(c)
					if err != nil {
						t.Fatal(err)
					}
					if err := g.Run(t.Context()); err != nil {
						t.Fatal(err)
					}
					if got := log.numbers(pipelines); !slices.Equal(got, want) {
						t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
					}
					crossings := int64(2 * (grid.Stages() - 1) * modelMicros * pipelines * 6)
					if inDevice.Load() != crossings || inHost.Load() != 0 {
						t.Errorf("%d boundaries crossed in device memory and %d in host memory, want %d and 0", inDevice.Load(), inHost.Load(), crossings)
					}
				})
			}
		}
	}
}
