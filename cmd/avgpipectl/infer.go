package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
)

func newGenerateCommand() *cobra.Command {
	var r api.InferRequest
	cmd := daemonVerb(&cobra.Command{
		Use:   "generate JOB|DIR --prompt TEXT",
		Short: "Let a language model continue a text",
		Long: `Let a language model continue a text: the one of a job's last committed round, or an exported one in a directory. It
computes on this machine, on all processors, with the avgpiped beside this program or in PATH. The continuation is
printed as it is drawn, without the prompt, up to the end of the document, a --stop or --tokens; how many tokens a
second were drawn is printed behind it, on standard error. Ctrl-C ends it.

The prompt is computed in one pass, and each token after it in a pass of its own over what is kept of those before. When
the model's longest sequence is full, its older half is forgotten and the rest is computed anew, which takes one longer
pass; of a longer prompt the end counts. A recurrent model (awd-lstm) has no such limit.

With -o json an object is printed at the end: prompt, text, finish_reason (stop, length or interrupted), prompt_tokens,
tokens, prompt_seconds and tokens_per_second.`,
		Example: `  avgpipectl generate my-job --prompt 'func '
  avgpipectl generate ./model --prompt 'func ' --tokens 200 --temperature 0.7 --top-k 40
  avgpipectl generate ./model --prompt 'Q: Who? A:' --top-p 0.9 --stop 'Q:' --precision bf16
  avgpipectl generate ./model --prompt 'func ' --temperature 0 -o json | jq -r .text`,
	}, func(c *call) error { return c.generate(r) })
	f := cmd.Flags()
	f.StringVar(&r.Prompt, "prompt", "", "`TEXT` to continue")
	f.IntVar(&r.Tokens, "tokens", 300, "`NUMBER` of tokens to generate at most")
	f.Float64Var(&r.Temperature, "temperature", 0.8, "`VALUE` of 0 takes the most likely token every time, 1 draws as the model says")
	f.IntVar(&r.TopK, "top-k", 0, "draw from the `K` most likely tokens; 0 is all")
	f.Float64Var(&r.TopP, "top-p", 1, "draw from the fewest of the most likely tokens whose probabilities sum up to `P`; 1 is all")
	f.StringArrayVar(&r.Stop, "stop", nil, "end before this `TEXT`; may be repeated")
	f.Uint64Var(&r.Seed, "seed", 1, "`NUMBER` that determines the draws")
	r.Precision = "f32"
	choiceVar(cmd, &r.Precision, "precision", "", "bf16 reads half as many bytes of the model for each token; `TYPE` of products", []string{"f32", "bf16"})
	return cmd
}

// generate prints a continuation as it comes.
func (c *call) generate(r api.InferRequest) error {
	for _, f := range []struct {
		name, want string
		value      float64
	}{{"temperature", "a number of at least 0", r.Temperature}, {"top-p", "a number from 0 to 1", r.TopP}} {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) {
			return usagef("generate: --%s is %v; want %s", f.name, f.value, f.want)
		}
	}
	text, out := &bytes.Buffer{}, forPeople(c.out)
	var end *api.Generation
	err := c.infer(api.InferGenerate, r, func(from io.Reader) error {
		return eachLine(from, func(line api.Generated) error {
			if line.End != nil {
				end = line.End
			}
			text.Write(line.Text)
			if c.format == formatJSON {
				return nil
			}
			_, err := out.Write(line.Text)
			return err
		})
	})
	if errors.Is(err, context.Canceled) {
		err = &exit{code: exitInterrupted} // whoever did it knows
	}
	switch {
	case c.format == formatJSON && end != nil:
		end.Text = text.String()
		return errors.Join(printJSON(c.out, end), err)
	case c.format == formatJSON || err != nil && text.Len() == 0:
		return err
	}
	err = errors.Join(err, c.printf("\n"))
	if end != nil {
		fmt.Fprintf(c.messages, "%s, %.1f a second; the prompt of %d took %.2f s\n", words.Count(end.Tokens, "token"), end.TokensPerSecond, //nolint:errcheck // for show
			end.PromptTokens, end.PromptSeconds)
	}
	return err
}

func newPredictCommand() *cobra.Command {
	var r api.InferRequest
	cmd := daemonVerb(&cobra.Command{
		Use:   "predict JOB|DIR [INPUT...]",
		Short: "Classify texts or images, or fill in hidden words",
		Long: `Classify texts or images, or fill in hidden words, as the model was trained to: the one of a job's last committed
round, or an exported one in a directory. An input is a text, two texts with a tab between them for a model of
pairs, or the path of a PNG or JPEG file. Without any, the lines of standard input are the inputs. Hidden words of a
masked language model are written as the tokenizer's mask token, such as [MASK].

For each input a line is printed: the class, its probability and the input, with tabs between them; or the text with
its hidden words filled in. With --top K, the K likeliest with their probabilities. It computes on this machine, with the
avgpiped beside this program or in PATH.`,
		Example: `  avgpipectl predict spam-job 'You have won a prize'
  avgpipectl predict ./model digit.png --top 3 -o json | jq '.guesses[0]'
  avgpipectl predict ./masked 'The [MASK] barks.'`,
	}, func(c *call) error {
		if r.Top < 1 {
			return usagef("predict: --top is %d; at least 1 is shown", r.Top)
		}
		return inferLines(c, api.InferPredict, r, func(p api.Prediction) error {
			_, err := fmt.Fprintln(forPeople(c.out), predictionLine(p, r.Top))
			return err
		})
	})
	cmd.Flags().IntVar(&r.Top, "top", 1, "show the `K` likeliest classes or words")
	return cmd
}

// predictionLine is a prediction for people.
func predictionLine(p api.Prediction, top int) string {
	var all []string
	for _, guesses := range p.Guesses {
		var likeliest []string
		for _, g := range guesses {
			likeliest = append(likeliest, fmt.Sprintf("%s %.4f", g.Label, g.Probability))
		}
		all = append(all, strings.Join(likeliest, ", "))
	}
	switch {
	case p.Text != "" && top == 1:
		return p.Text
	case p.Text != "":
		return p.Text + "\t" + strings.Join(all, "; ")
	case top == 1 && len(p.Guesses) == 1 && len(p.Guesses[0]) == 1:
		g := p.Guesses[0][0]
		return fmt.Sprintf("%s\t%.4f\t%s", g.Label, g.Probability, p.Input)
	}
	return strings.Join(all, "; ") + "\t" + p.Input
}

func newTranslateCommand() *cobra.Command {
	var r api.InferRequest
	cmd := daemonVerb(&cobra.Command{
		Use:   "translate JOB|DIR [TEXT...]",
		Short: "Translate texts",
		Long: `Translate texts with a translation model: the one of a job's last committed round, or an exported one in a directory.
Without texts, the lines of standard input are translated. A line is printed for each. It computes on this machine,
with the avgpiped beside this program or in PATH.`,
		Example: `  avgpipectl translate gettext-job 'File not found'
  avgpipectl translate ./model -o json < english.txt | jq -r .text`,
	}, func(c *call) error {
		return inferLines(c, api.InferTranslate, r, func(t api.Translation) error {
			_, err := fmt.Fprintln(forPeople(c.out), t.Text)
			return err
		})
	})
	cmd.Flags().IntVar(&r.Beam, "beam", 4, "`NUMBER` of translations that are pursued at once; 1 takes the likeliest token every time")
	return cmd
}

func newEvaluateCommand() *cobra.Command {
	var r api.InferRequest
	cmd := daemonVerb(&cobra.Command{
		Use:   "evaluate JOB|DIR --data FILE",
		Short: "Measure a model on data",
		Long: `Measure a model on data of the format that it was trained on: the model of a job's last committed round, or an
exported one in a directory. All of the data is measured, cut as a job cuts its data.validation. Printed are the loss and what the task has a use for: perplexity of models that predict
tokens, accuracy and F1 of classifiers, BLEU of translations. With --held-out, only the part is used that a job with
these files holds out. It computes on this machine, with the avgpiped beside this program or in PATH.`,
		Example: `  avgpipectl evaluate spam-job --data spam/*.csv --held-out
  avgpipectl evaluate ./model --data test.jsonl -o json | jq .accuracy`,
	}, func(c *call) error {
		if len(r.Files) == 0 {
			return usagef("evaluate %s: name the data, as with --data test.txt", c.args[0])
		}
		return inferLines(c, api.InferEvaluate, r, func(s api.Scores) error {
			p := newPage(forPeople(c.out))
			printScores(p, s)
			return p.print()
		})
	})
	f := cmd.Flags()
	f.StringArrayVar(&r.Files, "data", nil, "`FILE`, directory or pattern to measure on; may be repeated")
	f.BoolVar(&r.HeldOut, "held-out", false, "only the part that a job with these files holds out")
	f.IntVar(&r.Beam, "beam", 1, "`NUMBER` of translations that are pursued at once, for BLEU")
	f.IntVar(&r.Samples, "samples", 0, "`NUMBER` of samples at most; 0 is all")
	return cmd
}

// printScores prints an evaluation for people.
func printScores(p *page, s api.Scores) {
	var t table
	t.add("task", s.Task)
	t.add("samples", fmt.Sprintf("%d, %d targets", s.Samples, s.Targets))
	t.add("loss", fmt.Sprintf("%.4f %s", s.Loss, lossUnit(s.Task)))
	for _, f := range figures(s.Metrics) {
		t.add(f.name, f.text)
	}
	if s.BLEU != nil {
		t.add("BLEU", fmt.Sprintf("%.2f", *s.BLEU))
	}
	p.table(&t)
	var classes table
	classes.add("CLASS", "SAMPLES", "PREDICTED", "CORRECT", "F1")
	for _, c := range s.Classes {
		classes.add(c.Label, strconv.Itoa(c.Targets), strconv.Itoa(c.Predicted), strconv.Itoa(c.Correct), fmt.Sprintf("%.4f", c.F1))
	}
	p.below(&classes)
}

// infer has avgpiped do something with the model that the first argument names, with the other arguments as inputs. read reads what it
// prints, while it prints it.
func (c *call) infer(verb string, r api.InferRequest, read func(io.Reader) error) error {
	return c.withModel(func(dir, name string) error {
		program, err := findDaemon()
		if err != nil {
			return err
		}
		r.Verb, r.Model, r.Name = verb, dir, name
		request, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("%s: encode the request: %w", verb, err)
		}
		cmd := exec.CommandContext(c.ctx, program, append([]string{"infer", "--", string(request)}, c.args[1:]...)...)
		cmd.Stdin, cmd.Stderr = c.in, c.messages
		// A terminal's interruption reaches it too, and it ends after the token that it computes.
		cmd.Cancel, cmd.WaitDelay = func() error { return nil }, time.Second
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return fmt.Errorf("run %s: %w", program, err)
		}
		failed := read(out)
		if failed != nil {
			_ = cmd.Process.Kill() // it may wait for somebody to read on
		}
		err = cmd.Wait()
		status, exited := errors.AsType[*exec.ExitError](err)
		switch {
		case c.ctx.Err() != nil:
			return c.ctx.Err()
		case failed != nil:
			return fmt.Errorf("read what avgpiped computed: %w", failed)
		case exited && status.ExitCode() > 0:
			return &exit{code: status.ExitCode()} // it has said why
		case err != nil:
			return fmt.Errorf("run %s: %w", program, err)
		}
		return nil
	})
}

// inferLines is infer with a verb that prints a T per line. Each is printed as soon as it comes: as JSON, or by show.
func inferLines[T any](c *call, verb string, r api.InferRequest, show func(T) error) error {
	if c.format == formatJSON {
		show = func(t T) error { return printLine(c.out, t) }
	}
	return c.infer(verb, r, func(from io.Reader) error { return eachLine(from, show) })
}

// eachLine calls do with each value of a stream, as soon as it comes.
func eachLine[T any](from io.Reader, do func(T) error) error {
	for decoder := json.NewDecoder(from); ; {
		var line T
		err := decoder.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(line)
		}
		if err != nil {
			return err
		}
	}
}

// findDaemon finds the program that computes: the one that was installed with this one, else one in PATH.
func findDaemon() (string, error) {
	const name = "avgpiped"
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in PATH; it does the computing: %w", name, err)
	}
	return path, nil
}
