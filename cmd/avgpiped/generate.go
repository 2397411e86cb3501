package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/generate"
)

// generateOptions are the flags of the generate verb.
type generateOptions struct {
	model       string
	prompt      string
	device      string
	tokens      int
	temperature float64
	topK        int
	seed        uint64
}

func newGenerateCommand() *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:    "generate --model DIR --prompt TEXT",
		Short:  "Continue a text with an exported model; avgpipectl generate runs this",
		Hidden: true,
		Args:   usageArguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runGenerate(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "", "directory with config.json and model.safetensors")
	f.StringVar(&o.prompt, "prompt", "", "text to continue")
	f.StringVar(&o.device, "device", "auto", "what computes: auto, cpu or ref")
	f.IntVar(&o.tokens, "tokens", 300, "tokens to generate")
	f.Float64Var(&o.temperature, "temperature", 0.8, "0 takes the most likely token every time")
	f.IntVar(&o.topK, "top-k", 0, "draw from the k most likely tokens only; 0: from all")
	f.Uint64Var(&o.seed, "seed", 1, "determines the draws")
	if err := cmd.MarkFlagRequired("model"); err != nil {
		panic(fmt.Sprintf("flag: %v", err)) // it was defined a few lines above
	}
	return cmd
}

// runGenerate writes the continuation to out, byte by byte, as it is drawn.
func runGenerate(ctx context.Context, o generateOptions, out io.Writer) (err error) {
	m, weights, err := export.Open(o.model)
	if err != nil {
		return &usageError{err}
	}
	defer func() { err = errors.Join(err, weights.Close()) }()
	if m.Vocabulary() != 256 {
		return &usageError{fmt.Errorf("model %s: %d tokens in its vocabulary; text can be generated with byte tokens, 256", o.model, m.Vocabulary())}
	}
	runtime.LockOSThread() // the device's threads belong to this one
	defer runtime.UnlockOSThread()
	dev, _, err := pick.Open(o.device, pick.Config{})
	if err != nil {
		return &usageError{err}
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if t, ok := dev.(device.Threaded); ok {
		if err := t.Attach(); err != nil {
			return err
		}
	}
	prompt := []int32{0} // what separates files: the start of one
	if o.prompt != "" {
		prompt = prompt[:0]
	}
	for _, b := range []byte(o.prompt) {
		prompt = append(prompt, int32(b))
	}
	c := generate.Config{
		Device: dev, Model: m, Weights: weights.Lookup, Prompt: prompt, Tokens: o.tokens,
		Temperature: o.temperature, TopK: o.topK, Seed: o.seed,
	}
	if err := c.Validate(); err != nil {
		return &usageError{err}
	}
	return generate.Run(ctx, c, func(token int32) error {
		_, err := out.Write([]byte{byte(token)})
		return err
	})
}
