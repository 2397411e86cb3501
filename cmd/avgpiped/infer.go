package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/infer"
)

// inferOptions are the flags of all verbs of infer.
type inferOptions struct{ model, device string }

// newInferCommand makes the verbs that avgpipectl runs to use a model. They print JSON lines, but for generate.
func newInferCommand() *cobra.Command {
	var o inferOptions
	cmd := &cobra.Command{
		Use:    "infer VERB --model DIR",
		Short:  "Use an exported model; avgpipectl runs this",
		Hidden: true,
		Args:   noArguments(usageError),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(fmt.Errorf("name what to do with the model; see %s --help", cmd.CommandPath()))
		},
	}
	cmd.PersistentFlags().StringVar(&o.device, "device", "auto", "what computes: auto, cpu or ref")
	cmd.AddCommand(newInferGenerate(&o), newInferPredict(&o), newInferTranslate(&o), newInferEvaluate(&o))
	return required(cmd, &o.model, "model", "directory with config.json and model.safetensors")
}

// verb is a verb of infer, which runs with the model.
func (o *inferOptions) verb(use, short string, run func(s *infer.Session, cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, args []string) (err error) {
		s, err := infer.Open(o.model, o.device)
		if err != nil {
			return usageError(err)
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		err = run(s, cmd, args)
		var task *infer.TaskError
		var usage *infer.UsageError
		if errors.As(err, &task) || errors.As(err, &usage) {
			err = usageError(err)
		}
		return err
	}}
}

func newInferGenerate(o *inferOptions) *cobra.Command {
	var g infer.Generate
	cmd := o.verb("generate --prompt TEXT", "Continue a text", func(s *infer.Session, cmd *cobra.Command, _ []string) error {
		return s.Generate(cmd.Context(), g, cmd.OutOrStdout())
	})
	f := cmd.Flags()
	f.StringVar(&g.Prompt, "prompt", "", "text to continue")
	f.IntVar(&g.Tokens, "tokens", 300, "tokens to generate at most")
	f.Float64Var(&g.Temperature, "temperature", 0.8, "0 takes the most likely token every time")
	f.IntVar(&g.TopK, "top-k", 0, "draw from the k most likely tokens only; 0: from all")
	f.Uint64Var(&g.Seed, "seed", 1, "determines the draws")
	return cmd
}

func newInferPredict(o *inferOptions) *cobra.Command {
	var top int
	cmd := o.verb("predict [INPUT...]", "Classify, or fill in hidden words; the arguments, or lines of standard input",
		func(s *infer.Session, cmd *cobra.Command, args []string) error {
			lines := json.NewEncoder(cmd.OutOrStdout())
			return eachInput(cmd.Context(), args, cmd.InOrStdin(), func(inputs []string) error {
				return s.Predict(cmd.Context(), top, inputs, func(p api.Prediction) error { return lines.Encode(p) })
			})
		})
	cmd.Flags().IntVar(&top, "top", 1, "guesses of each class or word")
	return cmd
}

func newInferTranslate(o *inferOptions) *cobra.Command {
	var beam int
	cmd := o.verb("translate [TEXT...]", "Translate the arguments, or lines of standard input",
		func(s *infer.Session, cmd *cobra.Command, args []string) error {
			lines := json.NewEncoder(cmd.OutOrStdout())
			return eachInput(cmd.Context(), args, cmd.InOrStdin(), func(texts []string) error {
				return s.Translate(cmd.Context(), beam, texts, func(t api.Translation) error { return lines.Encode(t) })
			})
		})
	cmd.Flags().IntVar(&beam, "beam", 4, "translations that are pursued at once")
	return cmd
}

func newInferEvaluate(o *inferOptions) *cobra.Command {
	var e infer.Evaluate
	cmd := o.verb("evaluate --data FILE", "Measure a model on data", func(s *infer.Session, cmd *cobra.Command, _ []string) error {
		scores, err := s.Evaluate(cmd.Context(), e)
		if err != nil {
			return err
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(scores)
	})
	f := cmd.Flags()
	f.StringArrayVar(&e.Files, "data", nil, "files, directories or patterns")
	f.BoolVar(&e.HeldOut, "held-out", false, "only the part that a job holds out")
	f.IntVar(&e.Samples, "samples", 0, "samples at most; 0: all")
	f.IntVar(&e.Beam, "beam", 1, "translations that are pursued at once, for BLEU")
	return cmd
}

// linesAtOnce is how many lines of standard input are worked on together.
const linesAtOnce = 32

// eachInput passes on the arguments, or as many lines of in at once as are there.
func eachInput(ctx context.Context, arguments []string, in io.Reader, do func([]string) error) error {
	if len(arguments) > 0 {
		return do(arguments)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20) // a line of more is no text to classify
	var some []string
	for lines.Scan() && ctx.Err() == nil {
		if some = append(some, lines.Text()); len(some) == linesAtOnce {
			if err := do(some); err != nil {
				return err
			}
			some = some[:0]
		}
	}
	if err := errors.Join(lines.Err(), ctx.Err()); err != nil {
		return fmt.Errorf("read standard input: %w", err)
	}
	if len(some) == 0 {
		return nil
	}
	return do(some)
}
