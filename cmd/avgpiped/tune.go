package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/profile"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

func newTuneCommand() *cobra.Command {
	var (
		request  string
		graphics cuda.Config
	)
	cmd := hidden("tune --request FILE", "Choose a job's counts by measuring", func(cmd *cobra.Command) error { return runTune(cmd, request, graphics) })
	return required(graphicsFlags(cmd, &graphics), &request, "request", "file that says what to choose")
}

// endWith ends the program when in does. A tuning has nothing to save, and one step of it may take minutes, during which the next daemon
// measures on the same cores. Nobody joins the goroutine: it reads for as long as the program runs.
func endWith(in io.Reader, messages io.Writer) {
	go func() {
		_, err := io.Copy(io.Discard, in)
		err = errors.Join(errors.New("tune: the standard input ended, so the daemon is gone"), err)
		fmt.Fprintln(messages, "avgpiped:", err) //nolint:errcheck // nowhere left to say it
		os.Exit(exitFailed)
	}()
}

// runTune prints progress, and at the end the report or the error, as control.TuneMessage describes.
func runTune(cmd *cobra.Command, path string, graphics cuda.Config) error {
	endWith(cmd.InOrStdin(), cmd.ErrOrStderr())
	r, err := control.ReadTuneRequest(path)
	if err != nil {
		return err
	}
	if r.NodeCores == 0 && len(r.Cores) == 0 {
		r.NodeCores = runtime.NumCPU()
	}
	lines := json.NewEncoder(cmd.OutOrStdout())
	var broken error // of the output: whoever asked is gone
	say := func(m control.TuneMessage) {
		if err := lines.Encode(m); err != nil {
			broken = errors.Join(broken, fmt.Errorf("print: %w", err))
		}
	}
	report, err := profile.Tune(cmd.Context(), profile.Config{
		Request:  r,
		Graphics: graphics,
		Progress: func(p api.TuneProgress) { say(control.TuneMessage{Progress: &p}) },
	})
	switch {
	case cmd.Context().Err() != nil:
		return errors.New("tune: interrupted")
	case err != nil:
		say(control.TuneMessage{Error: err.Error(), Permanent: profile.Permanent(err), Obstacle: obstacle.Of(err)})
		return errors.Join(err, broken)
	}
	say(control.TuneMessage{Report: report})
	return broken
}
