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

// exitUsage ends infer where the request does not fit the model, as avgpipectl ends then.
const exitUsage = 2

// newInferCommand makes the verb that avgpipectl runs to use a model. It prints a JSON value per line.
func newInferCommand() *cobra.Command {
	return &cobra.Command{
		Use: "infer REQUEST [INPUT...]", Short: "Use an exported model; avgpipectl runs this", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r api.InferRequest
			if err := json.Unmarshal([]byte(args[0]), &r); err != nil {
				return configError(fmt.Errorf("infer: read the request: %w", err))
			}
			err := runInfer(cmd.Context(), r, args[1:], cmd.InOrStdin(), cmd.OutOrStdout())
			if usage, ok := errors.AsType[*infer.UsageError](err); ok {
				return &exit{exitUsage, usage}
			}
			return err
		},
	}
}

// runInfer opens the model and does with it what is asked for.
func runInfer(ctx context.Context, r api.InferRequest, inputs []string, in io.Reader, out io.Writer) (err error) {
	s, err := infer.Open(r)
	if err != nil {
		return &infer.UsageError{Err: err}
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	lines := json.NewEncoder(out)
	switch r.Verb {
	case api.InferGenerate:
		end, err := s.Generate(ctx, r, pieces{lines})
		if err != nil {
			return err
		}
		return lines.Encode(api.Generated{End: &end})
	case api.InferPredict:
		return eachInput(ctx, inputs, in, func(inputs []string) error {
			return s.Predict(ctx, r.Top, inputs, func(p api.Prediction) error { return lines.Encode(p) })
		})
	case api.InferTranslate:
		return eachInput(ctx, inputs, in, func(texts []string) error {
			return s.Translate(ctx, r.Beam, texts, func(t api.Translation) error { return lines.Encode(t) })
		})
	case api.InferEvaluate:
		scores, err := s.Evaluate(ctx, r)
		if err != nil {
			return err
		}
		return lines.Encode(scores)
	}
	return configError(fmt.Errorf("infer: no verb %q", r.Verb))
}

// pieces writes text as lines of a generation.
type pieces struct{ lines *json.Encoder }

// Write implements io.Writer.
func (p pieces) Write(text []byte) (int, error) {
	if len(text) == 0 {
		return 0, nil
	}
	return len(text), p.lines.Encode(api.Generated{Text: text})
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
