package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// mostChanged is how many lines of a program a user has to change or add before it runs here.
const mostChanged = 5

// changed counts the lines that have to be removed from a and added to make it b, blank ones included.
func changed(a, b []string) int {
	common := make([][]int, len(a)+1) // of a[:i] and b[:j], the longest common subsequence
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := range a {
		for j := range b {
			common[i+1][j+1] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i+1][j+1] = 1 + common[i][j]
			}
		}
	}
	return len(a) + len(b) - 2*common[len(a)][len(b)]
}

// words writes texts of few words, of which one has so many samples of eight, and their vocabulary.
func (s *site) words(samples int) {
	s.t.Helper()
	names := strings.Fields("a dog barks the cat purrs . one bird sings")
	var text []string
	for i := range 8 * samples {
		text = append(text, names[(i*i+3*i)%len(names)])
	}
	s.write("train.txt", strings.Join(text, " ")) // and the end of the document
	s.write("validation.txt", strings.Join(text[:8*4], " "))
	vocabulary := []string{`"[UNK]": 0`, `"</s>": 1`}
	for i, name := range names {
		vocabulary = append(vocabulary, fmt.Sprintf(`%q: %d`, name, 2+i))
	}
	s.write("words.json", `{"version": "1.0", "added_tokens": [{"id": 0, "content": "[UNK]", "special": true}, {"id": 1, "content": "</s>", "special": true}],
"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {`+strings.Join(vocabulary, ", ")+`}}}`)
}

// digits writes images of two stripes, whose place is their class, as MNIST has them.
func (s *site) digits(samples int) {
	s.t.Helper()
	for part, n := range map[string]int{"train": samples, "t10k": 10} {
		images, labels := []byte{0, 0, 8, 3}, []byte{0, 0, 8, 1}
		for _, size := range []int{n, 28, 28} {
			images = binary.BigEndian.AppendUint32(images, uint32(size)) //nolint:gosec // small
		}
		labels = binary.BigEndian.AppendUint32(labels, uint32(n)) //nolint:gosec // as above
		for i := range n {
			label := (3*i + n) % 10
			labels = append(labels, byte(label))
			for at := range 28 * 28 {
				images = append(images, byte(at%28/(label+2)%2*200+i%7))
			}
		}
		s.write(part+"-images-idx3-ubyte", string(images))
		s.write(part+"-labels-idx1-ubyte", string(labels))
	}
}

// TestProgramsOfTheExamplesRunHereAfterFiveLines: the plain program and the job of its modules begin with the same loss on held-out data and, where each
// batch is all there is to train on, end with the same. The job as its file lays it out, two pipelines of two stages, learns as well.
func TestProgramsOfTheExamplesRunHereAfterFiveLines(t *testing.T) {
	t.Parallel()
	const steps, batch = 6, 16
	interpreter := stagetest.Python(t)
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	s.words(batch)
	s.digits(batch)
	s.start()
	for name, c := range map[string]struct{ options, sets []string }{
		"words": {
			[]string{"--length=8", "--width=16"},
			[]string{"model.args={words: 12, width: 16, dropout: 0}", "model.vocabulary=12", "data.sequence=8", "data.files=[train.txt]", "data.validation=[validation.txt]", "data.tokenizer=words.json"},
		},
		"digits": {[]string{"--width=2"}, []string{"model.args={width: 2, dropout: 0}", "data.files=[train-*]", "data.validation=[t10k-*]"}},
	} {
		t.Run(name, func(t *testing.T) {
			options := append(c.options, "--dropout=0", "--data="+s.dir, fmt.Sprint("--steps=", steps), fmt.Sprint("--batch=", batch))
			plain, program := filepath.Join(examples, "python", name+"_plain.py"), filepath.Join(examples, "python", name+".py")
			if n := changed(strings.Split(content(t, plain), "\n"), strings.Split(content(t, program), "\n")); n == 0 || n > mostChanged {
				t.Errorf("%d lines of the program are changed, expected 1 to %d", n, mostChanged)
			}
			losses := heldOut(t, interpreter, []string{plain, program}, options) // which still runs by itself
			if len(losses) != 4 || !slices.Equal(losses[:2], losses[2:]) || losses[1] >= losses[0] {
				t.Fatalf("the losses of the programs are %v, expected twice the same two, of which the second is smaller", losses)
			}
			request := api.SubmitRequest{
				File: name + ".yaml", Source: content(t, filepath.Join(examples, "python-"+name+".yaml")), Base: s.dir,
				Set: append(c.sets, "model.python="+program+":build", "model.interpreter="+interpreter, fmt.Sprint("train.batch=", batch)),
			}
			one := s.trained(s.submitted(request, fmt.Sprint("train.steps=", steps), "stages=1", "pipelines=1", "micro_batches=1"))
			for i, found := range []*float64{one.InitialLoss, one.EvalLoss} {
				if want := losses[i]; found == nil || math.Abs(*found-want) > 1e-4*want {
					t.Errorf("loss %d on held-out data is %v, that of the plain program %v", i, found, want)
				}
			}
			two := s.trained(s.submitted(request, fmt.Sprint("train.steps=", 4*steps)))
			if two.Pipelines != 2 || two.Stages != 2 || *two.EvalLoss >= *two.InitialLoss {
				t.Errorf("%d pipelines of %d stages go from a loss of %v to one of %v", two.Pipelines, two.Stages, *two.InitialLoss, *two.EvalLoss)
			}
		})
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// inTurn runs programs of Python, the first of its arguments, with the rest.
const inTurn = `import runpy, sys
programs, options = sys.argv[1].split(":"), sys.argv[2:]
for program in programs:
    sys.argv = [program] + options
    runpy.run_path(program, run_name="__main__")`

// heldOut runs plain programs, one after the other in one interpreter, and returns the losses on held-out data that they print.
func heldOut(t *testing.T, interpreter string, programs, options []string) (losses []float64) {
	t.Helper()
	c := exec.CommandContext(t.Context(), interpreter, append([]string{"-c", inTurn, strings.Join(programs, ":")}, options...)...)
	c.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", programs, err, out)
	}
	for line := range strings.Lines(string(out)) {
		var loss float64
		if n, _ := fmt.Sscanf(line, "held-out loss %f", &loss); n == 1 {
			losses = append(losses, loss)
		}
	}
	return losses
}
