package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// logsOptions are the flags of `logs`.
type logsOptions struct {
	connection
	output
	follow bool
}

func newLogsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Print a job's log",
		Long: `Print a job's log: what the daemon decided about it and what its workers said. The json output is the log as it is
kept, one object per line.

Exit codes:
` + exitHelp,
		Example: `  avgpipectl logs my-job
  avgpipectl logs my-job -f`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runLogs(cmd.Context(), o, args[0], cmd.OutOrStdout())
		},
	}
	o.connection.addFlags(cmd)
	o.output.addFlags(cmd)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on until the job ends")
	return cmd
}

func runLogs(ctx context.Context, o logsOptions, ref string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	if o.json() {
		return client.Logs(ctx, ref, o.follow, out)
	}
	lines := &logPrinter{out: out}
	return errors.Join(client.Logs(ctx, ref, o.follow, lines), lines.flush())
}

// logPrinter renders lines of JSON for people.
type logPrinter struct {
	out  io.Writer
	rest []byte // the start of a line whose end has not come yet
}

func (p *logPrinter) Write(text []byte) (int, error) {
	p.rest = append(p.rest, text...)
	for {
		line, rest, found := bytes.Cut(p.rest, []byte("\n"))
		if !found {
			return len(text), nil
		}
		if _, err := fmt.Fprintln(p.out, renderLog(line)); err != nil {
			return 0, err
		}
		p.rest = rest
	}
}

func (p *logPrinter) flush() error {
	if len(p.rest) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(p.out, renderLog(p.rest))
	return err
}

// renderLog renders a line: time, level, who, what, and the rest as key=value. A line that is not JSON stays as it is, but
// for what a terminal would obey.
func renderLog(line []byte) string {
	var entry map[string]any
	if json.Unmarshal(line, &entry) != nil {
		return printable(string(line))
	}
	take := func(key string) string {
		v, ok := entry[key]
		delete(entry, key)
		if !ok {
			return ""
		}
		return fmt.Sprint(v)
	}
	at := ""
	if ts, ok := entry["ts"].(float64); ok {
		at = time.UnixMicro(int64(ts * 1e6)).Format("15:04:05.000")
		delete(entry, "ts")
	} else if ts, err := time.Parse(time.RFC3339Nano, fmt.Sprint(entry["time"])); err == nil {
		at = ts.Local().Format("15:04:05.000")
		delete(entry, "time")
	}
	parts := []string{at, fmt.Sprintf("%-5s", take("level")), take("logger"), take("msg")}
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		if entry[key] == nil { // not known, such as the accuracy of a language model
			continue
		}
		parts = append(parts, fmt.Sprintf("%s=%v", key, entry[key]))
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return strings.TrimSpace(s) == "" })
	return printable(strings.Join(parts, " "))
}

// printable replaces what a terminal would obey.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r == 0x7f {
			return '·'
		}
		return r
	}, text)
}
