package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// logsOptions are the flags of `logs`.
type logsOptions struct {
	api.LogRequest
	since string
}

func newLogsCommand() *cobra.Command {
	var o logsOptions
	cmd := daemonVerb(&cobra.Command{
		Use:   "logs JOB",
		Short: "Print a job's log",
		Long: `Print a job's log: what the daemon decided about it and what its workers said. Output of a worker that is no line of a
log, such as a crash, is a line of level error. In a cluster it is that of all nodes, in the order of time; each line says which
node it is of, and a warning which nodes cannot be read.

With -f it goes on until the job ends, across restarts of workers and of the daemon, which it waits for up to a minute; no line is
lost or there twice.

The json output is the log as it is kept, one object per line: time, level, msg, fields, and the cursor of the line.`,
		Example: `  avgpipectl logs my-job
  avgpipectl logs my-job -f --tail 20
  avgpipectl logs my-job --since 10m --level warn`,
	}, func(c *call) error {
		if err := o.check(time.Now()); err != nil {
			return usagef("%w", err)
		}
		return c.logs(o.LogRequest)
	})
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on until the job ends")
	cmd.Flags().IntVar(&o.Tail, "tail", 0, "begin with the last `N` lines; 0 is all")
	cmd.Flags().StringVar(&o.since, "since", "", "begin at a `TIME`, or so long ago: 10m, 2026-01-02, 2026-01-02T15:04:05Z")
	choiceVar(cmd, &o.Level, "level", "", "only lines of this `LEVEL` or above", []string{"debug", "info", "warn", "error"})
	return cmd
}

// check completes the request and refuses what cannot be asked for.
func (o *logsOptions) check(now time.Time) error {
	if o.Tail < 0 {
		return fmt.Errorf("--tail is %d; allowed is 0 or more", o.Tail)
	}
	if o.since == "" {
		return nil
	}
	if ago, err := time.ParseDuration(o.since); err == nil && ago >= 0 {
		o.Since = now.Add(-ago)
		return nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, o.since, now.Location()); err == nil {
			o.Since = at
			return nil
		}
	}
	return fmt.Errorf("--since %q: allowed is a duration, such as 10m, or a time, such as 2026-01-02 15:04", o.since)
}

// logs prints what is asked for. A log that is followed goes on where it was when the daemon is back.
func (c *call) logs(request api.LogRequest) error {
	ask := func(answered func()) error {
		return c.client.Logs(c.ctx, c.args[0], request, func(entry []byte) error {
			var has struct{ Cursor string }
			if json.Unmarshal(entry, &has) == nil && has.Cursor != "" {
				request.After, request.Tail = has.Cursor, 0
			}
			answered()
			if c.format == formatJSON {
				return c.printf("%s\n", entry)
			}
			return c.printf("%s\n", renderLog(entry))
		})
	}
	if !request.Follow {
		return ask(func() {})
	}
	return c.acrossRestarts(func(text string) { fmt.Fprintln(c.messages, text) }, ask) //nolint:errcheck // for show
}

// renderLog renders a line: time, level, who, what, and the rest as key=value. A line that is not JSON stays as it is, but
// for control characters.
func renderLog(line []byte) string {
	var entry map[string]any
	if json.Unmarshal(line, &entry) != nil {
		return string(printable(line))
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
	if ts, err := time.Parse(time.RFC3339Nano, fmt.Sprint(entry["time"])); err == nil {
		at = ts.Local().Format("15:04:05.000")
		delete(entry, "time")
	}
	delete(entry, "cursor")
	if output := take("output"); output != "" {
		entry["msg"] = output
	}
	parts := []string{at, fmt.Sprintf("%-5s", take("level")), take("logger"), take("msg")}
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		if entry[key] == nil { // not known, such as the accuracy of a language model
			continue
		}
		parts = append(parts, fmt.Sprintf("%s=%v", key, entry[key]))
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return strings.TrimSpace(s) == "" })
	return string(printable([]byte(strings.Join(parts, " "))))
}
