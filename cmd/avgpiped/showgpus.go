package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/words"
)

// gpuReport is what a daemon would find of GPUs.
type gpuReport struct {
	GPUs      []gpu.GPU       `json:"gpus"` // that jobs may use
	None      string          `json:"none,omitempty"`
	Hidden    string          `json:"hidden,omitempty"` // from jobs, and why
	Libraries []libraryReport `json:"libraries"`
}

// libraryReport is what was found of a library.
type libraryReport struct {
	Library string `json:"library"`
	Path    string `json:"path"` // that it was opened by, or that was tried; empty where there is none
	Error   string `json:"error,omitempty"`
}

func newGPUsCommand() *cobra.Command {
	var path, output string
	cmd := &cobra.Command{
		Use:   "gpus [--config FILE] [-o json]",
		Short: "List the GPUs that jobs may use, and the libraries that they take",
		Long: `Gpus says what the daemon would find on this host: the GPUs that jobs may use, and the libraries of NVIDIA with the path of
each or the reason why it cannot be used. Each library is opened by a process of its own, so that one that hangs or is damaged is named.
The daemon need not run; beside a daemon the list is the same: GPUs that errors (XIDs) have made sick are so here, as the state directory of FILE
keeps them. Run it as the daemon's user: what that may not open, it does not find.

Exit codes:
  0  there are GPUs that jobs may use
  1  there are none; the last line says why
  78 the flags or the configuration file are not usable, or name what is not there`,
		Example: `  sudo -u avgpipe avgpiped gpus --config /etc/avgpipe/avgpiped.yaml
  avgpiped gpus -o json | jq '.gpus[].uuid'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return configError(fmt.Errorf("gpus: -o is %q, expected text or json", output))
			}
			if err := checkLaunches(); err != nil {
				return err
			}
			c := defaultConfig()
			if path != "" {
				var err error
				if c, err = readConfig(path); err != nil {
					return err
				}
			}
			return showGPUs(cmd, &c, output)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration `FILE` of the daemon; without one, the defaults")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// showGPUs prints what a daemon of a configuration would find.
func showGPUs(cmd *cobra.Command, c *config, output string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, which opens the libraries: %w", err)
	}
	found, err := (&prober{self, c, probeBound, untold}).probe(cmd.Context())
	if err != nil {
		return err
	}
	var failures []string
	events := gpu.Events{
		Health: func(gpu.GPU, gpu.Health) {}, XID: func(gpu.GPU, gpu.XID) {}, Faults: func(gpu.Faults) {},
		Failure: func(f gpu.Failure) { failures = append(failures, f.Err.Error()) },
	}
	faults, err := node.KeptFaults(c.StateDir)
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "avgpiped: gpus: which GPUs the daemon keeps as sick is not known: %v\n", err) //nolint:errcheck // for show
	}
	m, err := found.start(cmd.Context(), c, events, faults)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	r := gpuReport{GPUs: m.GPUs(), Hidden: m.Hidden(), Libraries: []libraryReport{}}
	for _, f := range found.all() {
		if f.Library != "" {
			r.Libraries = append(r.Libraries, libraryReport{f.Library, f.path(), f.Error})
		}
	}
	switch {
	case found.why() != "":
		r.None = found.why()
	case c.selection().None():
		r.None = "the configuration gives jobs none (gpus)"
	case len(r.GPUs) == 0:
		r.None = strings.Join(append(failures, r.Hidden), "; ")
	}
	if err := r.print(cmd.OutOrStdout(), output); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if r.None != "" {
		return fmt.Errorf("jobs can use no GPU: %s", strings.Trim(r.None, "; "))
	}
	return nil
}

// print writes the report as text, but for why there are no GPUs, or as JSON.
func (r *gpuReport) print(to io.Writer, output string) error {
	if output == "json" {
		return json.NewEncoder(to).Encode(r)
	}
	t := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	between := ""
	section := func(head string) {
		fmt.Fprint(t, between, head, "\n") //nolint:errcheck // Flush says it
		between = "\n"
	}
	if len(r.GPUs) > 0 {
		section("GPU\tNAME\tUUID\tMEMORY\tCOMPUTE\tHEALTH")
	}
	for _, g := range r.GPUs {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n", g.Index, g.Name, g.UUID, words.Bytes(g.MemoryBytes), g.ComputeCapability, g.Health) //nolint:errcheck // as above
	}
	if r.Hidden != "" {
		section(r.Hidden)
	}
	if len(r.Libraries) > 0 {
		section("LIBRARY\tPATH\tFOUND")
	}
	for _, l := range r.Libraries {
		fmt.Fprintf(t, "%s\t%s\t%s\n", l.Library, cmp.Or(l.Path, "-"), cmp.Or(l.Error, "usable")) //nolint:errcheck // as above
	}
	return t.Flush()
}
