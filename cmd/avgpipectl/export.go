package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// exportOptions are the flags of `export`.
type exportOptions struct {
	connection
	output
	force bool
}

func newExportCommand() *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export JOB [DIR]",
		Short: "Write a job's model to a directory",
		Long: `Write the model of a job's last committed round to a directory, in Hugging Face form: config.json and
model.safetensors (several of them, with an index, when the model is large), with the job's tokenizer.json if it has
one and avgpipe.json, which says how the data were read. The job may still be running. The directory appears whole or
not at all. Without DIR it is the output.dir of the job file.

Exit codes:
` + exitHelp,
		Example: `  avgpipectl export my-job ./model`,
		Args:    arguments(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := ""
			if len(args) == 2 {
				dir = args[1]
			}
			return runExport(cmd.Context(), o, args[0], dir, cmd.OutOrStdout())
		},
	}
	o.connection.addFlags(cmd)
	o.output.addFlags(cmd)
	cmd.Flags().BoolVar(&o.force, "force", false, "replace what is in DIR")
	return cmd
}

func runExport(ctx context.Context, o exportOptions, ref, dir string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	s, err := client.Job(ctx, ref)
	if err != nil {
		return err
	}
	if dir == "" {
		dir = s.OutputDir
	}
	if dir == "" {
		return &usageError{fmt.Errorf("export %s: the job file has no output.dir, so name a directory: avgpipectl export %s DIR", ref, ref)}
	}
	if err := fetchModel(ctx, client, s.ID, dir, o.force); err != nil {
		return err
	}
	if o.json() {
		return printJSON(out, map[string]string{"job": s.ID, "name": s.Name, "dir": dir})
	}
	_, err = fmt.Fprintf(out, "the model of job %s (%s) is in %s\n", s.ID, s.Name, dir)
	return err
}

// errOccupied is wrapped by vacant's error.
var errOccupied = errors.New("exists and is not empty")

// vacant reports what keeps a new directory from taking a path.
func vacant(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err == nil:
		return fmt.Errorf("%s %w", dir, errOccupied)
	}
	if info, statErr := os.Lstat(dir); statErr == nil && !info.IsDir() {
		return fmt.Errorf("%s %w: it is a file", dir, errOccupied)
	}
	return fmt.Errorf("look into %s: %w", dir, err)
}

// fetchModel writes the model of a job to a directory, which appears whole or not at all. With force it takes the place of
// what is there.
func fetchModel(ctx context.Context, client *api.Client, id, dir string, force bool) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := vacant(dir); err != nil && (!force || !errors.Is(err, errOccupied)) {
		if errors.Is(err, errOccupied) {
			err = &usageError{fmt.Errorf("export: %w; name another directory, or replace what is there with --force", err)}
		}
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".avgpipe-export-")
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	fresh := filepath.Join(temp, "new")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := download(ctx, client, id, fresh); err != nil {
		return err
	}
	return swap(fresh, dir, filepath.Join(temp, "old"))
}

// download unpacks a job's model into an empty directory.
func download(ctx context.Context, client *api.Client, id, dir string) error {
	packed, sent := io.Pipe()
	var sending sync.WaitGroup
	sending.Go(func() { _ = sent.CloseWithError(client.Model(ctx, id, sent)) }) // the reader gets the error
	err := untar(packed, dir)
	_ = packed.CloseWithError(err) // ends the sender
	sending.Wait()
	return err
}

// swap moves a directory to where another may be, which it moves aside; if that fails, things are as before.
func swap(fresh, dir, aside string) error {
	err := os.Rename(dir, aside)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("export: move the old directory aside: %w", err)
	}
	moved := err == nil
	if err := os.Rename(fresh, dir); err != nil {
		err = fmt.Errorf("export: %w", err)
		if moved {
			err = errors.Join(err, os.Rename(aside, dir))
		}
		return err
	}
	return nil
}
