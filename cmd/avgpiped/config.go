package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// config is the configuration file.
type config struct {
	file *strictyaml.Document // nil: none was read

	stateDir   string
	socket     string
	group      string
	adminGroup string
	metrics    string // address; empty: off
	node       string
	cores      int
	logLevel   zapcore.Level
	limits     node.Limits // live, as the log level is
}

// defaultConfig is what an empty file means.
func defaultConfig() config {
	var c config
	for _, k := range keys(&c) {
		if !k.ofHost && !k.set(k.initial) {
			panic("the default of " + k.name + " is refused: " + k.initial) // a fault of the table below
		}
	}
	return c
}

// key is one key of the configuration file.
type key struct {
	name    string
	doc     string
	initial string // the default
	live    bool   // may change while the daemon runs: it is one of the limits, or the log level
	kind
}

// kind is what values of a key look like.
type kind struct {
	allowed string                 // for messages
	set     func(text string) bool // reports whether the text is allowed
	words   []string               // values that are words, for whoever mistypes one
	ofHost  bool                   // the default is the host's
}

// keys is every key, in the order of the help. Setting one changes c.
func keys(c *config) []key {
	jobs, workers := &c.limits.Jobs, &c.limits.Agent
	return []key{
		{"state_dir", "where everything lies that outlives a restart", "/var/lib/avgpipe", false, absolutePath(&c.stateDir)},
		{"socket", "where avgpipectl finds the daemon", api.DefaultSocket, false, absolutePath(&c.socket)},
		{"group", "whose members may use the socket; the default may be missing", "avgpipe", false, group(&c.group, "avgpipe")},
		{"admin_group", "whose members may read, export and cancel the jobs of everybody; the default may be missing", "avgpipe-admin", false, group(&c.adminGroup, "avgpipe-admin")},
		{"metrics_address", "where metrics and health are served over TCP, to whoever can connect", "off", false, address(&c.metrics)},
		{"node", "this node's name, for good", "the host's name", false, nodeName(&c.node)},
		{"cores", "processor cores that jobs compute on; 0 is all", "0", false, number(&c.cores, 0, math.MaxInt)},
		{"orphan_after", "how long workers go on without a daemon", "1h", true, duration(&workers.OrphanAfter, time.Second, "90s, 10m or 1h")},
		{"response_timeout", "how long a worker may not answer before it is killed", "30s", true, duration(&jobs.ResponseTimeout, time.Second, "30s or 2m")},
		{"retry_limit", "how many workers of a job may die, without a commit in between, before it fails", "10", true, number(&jobs.RetryLimit, 1, math.MaxInt)},
		{"retry_first", "the pause before the second restart of a job without a commit in between; it doubles", "500ms", true, duration(&jobs.RetryFirst, time.Millisecond, "500ms or 5s")},
		{"retry_longest", "the pause that it doubles to", "1m", true, duration(&jobs.RetryLongest, time.Millisecond, "1m")},
		{"quarantine_for", "how long shards are kept that no committed round names", "24h", true, duration(&workers.QuarantineFor, time.Second, "24h")},
		{"keep_ended_jobs", "ended jobs that are kept; the oldest are removed first", "100", true, orNone(&jobs.Retain.Jobs, number(&jobs.Retain.Jobs, 1, math.MaxInt))},
		{"keep_ended_age", "how long an ended job is kept", "none", true, orNone(&jobs.Retain.Age, duration(&jobs.Retain.Age, time.Minute, "720h"))},
		{"keep_ended_bytes", "what ended jobs may take on the disk; the last one always stays", "25%", true, space(&jobs.Retain)},
		{"worker_log_bytes", "when a job's log is rotated", "16MB", true, byteSize(&workers.LogBytes, 4<<10, "at least 4KB, such as 16MB")},
		{"worker_log_files", "rotated logs that a job keeps beside the current one", "3", true, number(&workers.LogFiles, 1, 99)},
		{"log_level", "debug, info, warn or error", "info", true, level(&c.logLevel)},
	}
}

func absolutePath(to *string) kind {
	return kind{allowed: "an absolute path", set: func(text string) bool {
		*to = text
		return strings.HasPrefix(text, "/")
	}}
}

func nodeName(to *string) kind {
	strange := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-", r)
	}
	return kind{allowed: "a name of up to 64 letters, digits, dots, dashes and underscores", ofHost: true, set: func(text string) bool {
		*to = text
		return text != "" && len(text) <= 64 && !strings.ContainsFunc(text, strange)
	}}
}

// group is the name of a group that exists, as far as this host can tell. The default may be missing, written or not.
func group(to *string, initial string) kind {
	return kind{allowed: "the name of a group of this host", set: func(text string) bool {
		_, err := user.LookupGroup(text)
		_, unknown := errors.AsType[user.UnknownGroupError](err)
		*to = text
		return text == initial || text != "" && !unknown
	}}
}

// address is host:port; off is empty.
func address(to *string) kind {
	return kind{allowed: "off, or an address such as 127.0.0.1:9464", words: []string{"off"}, set: func(text string) bool {
		if text == "off" {
			*to = ""
			return true
		}
		_, port, err := net.SplitHostPort(text)
		n, numeric := strconv.ParseUint(port, 10, 16)
		*to = text
		return err == nil && numeric == nil && n > 0
	}}
}

func number(to *int, least, most int) kind {
	allowed := fmt.Sprintf("a number, %d or more", least)
	if most < math.MaxInt {
		allowed = fmt.Sprintf("a number, %d to %d", least, most)
	}
	return kind{allowed: allowed, set: func(text string) bool {
		n, err := strconv.Atoi(text)
		*to = n
		return err == nil && n >= least && n <= most
	}}
}

func duration(to *time.Duration, least time.Duration, examples string) kind {
	text := strings.TrimSuffix(strings.TrimSuffix(least.String(), "0s"), "0m") // 1m0s is 1m
	return kind{allowed: "a time of at least " + text + ", such as " + examples, set: func(text string) bool {
		d, err := time.ParseDuration(text)
		*to = d
		return err == nil && d >= least
	}}
}

// orNone is a kind whose zero means no bound, and is written none.
func orNone[T int | time.Duration](to *T, k kind) kind {
	return kind{allowed: k.allowed + ", or none for no bound", words: []string{"none"}, set: func(text string) bool {
		if text == "none" {
			*to = 0
			return true
		}
		return k.set(text)
	}}
}

// space is what ended jobs may take: bytes, or a share of the disk.
func space(to *coordinator.Retention) kind {
	return kind{allowed: "bytes such as 500MB or 2TB, a share of the disk such as 25%, or none for no bound", words: []string{"none"}, set: func(text string) bool {
		to.Bytes, to.Share = 0, 0
		if text == "none" {
			return true
		}
		percent, ok := strings.CutSuffix(text, "%")
		if !ok {
			return byteSize(&to.Bytes, 1, "").set(text)
		}
		n, err := strconv.ParseFloat(percent, 64)
		to.Share = n / 100
		return err == nil && n > 0 && n <= 100 // not a number is neither
	}}
}

// units are those of bytes. Larger ones are powers of 1,024.
var units = []struct {
	name  string
	bytes int64
}{{"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40}, {"B", 1}, {"", 1}}

// byteSize is a number of bytes with its unit.
func byteSize(to *int64, least int64, allowed string) kind {
	return kind{allowed: "bytes, " + allowed, set: func(text string) bool {
		for _, u := range units {
			if number, ok := strings.CutSuffix(text, u.name); ok {
				n, err := strconv.ParseInt(number, 10, 64)
				*to = n * u.bytes
				return err == nil && n >= 1 && n <= math.MaxInt64/u.bytes && *to >= least
			}
		}
		return false
	}}
}

func level(to *zapcore.Level) kind {
	words := []string{"debug", "info", "warn", "error"}
	return kind{allowed: "debug, info, warn or error", words: words, set: func(text string) bool {
		return slices.Contains(words, text) && to.Set(text) == nil
	}}
}

// configHelp lists the keys for the help.
func configHelp() string {
	var b strings.Builder
	for _, k := range keys(new(config)) {
		mark := ' '
		if k.live {
			mark = '*'
		}
		fmt.Fprintf(&b, "%c %-16s %s (default: %s)\n", mark, k.name, k.doc, k.initial)
	}
	return b.String()
}

// readConfig reads a configuration file. One that somebody has to correct is a configError.
func readConfig(path string) (config, error) {
	text, err := (*access.Opener)(nil).ReadFile(path, capConfigBytes)
	switch errno, ofHost := errors.AsType[syscall.Errno](err); {
	case ofHost && errno != syscall.ENOENT && errno != syscall.EACCES && errno != syscall.ENOTDIR: // it may pass
		return config{}, fmt.Errorf("read the configuration: %w", err)
	case err != nil:
		return config{}, configError(fmt.Errorf("read the configuration: %w", err))
	}
	if strings.TrimSpace(string(text)) == "" { // as while somebody writes it
		return config{}, refused(fmt.Errorf("%s is empty; a comment is enough where every key has its default", path))
	}
	c, err := parseConfig(path, text)
	if err != nil {
		return c, refused(err)
	}
	return c, nil
}

func refused(err error) error {
	return configError(fmt.Errorf("the configuration is refused\n%w", err))
}

// explain makes an error of the node about a key of its configuration one of the file, at the key's line where it has one.
func (c *config) explain(err error) error {
	wrong, ok := errors.AsType[*node.KeyError](err)
	switch {
	case !ok:
		return err
	case c.file == nil || c.text(wrong.Key) == "":
		return configError(err)
	}
	c.file.Refuse(wrong.Key, "", "%v", wrong.Err)
	return refused(c.file.Err())
}

// capConfigBytes bounds a configuration file.
const capConfigBytes = 64 << 10

// text is what the file says of a key; "", which no key may be, where it does not have it.
func (c *config) text(key string) string {
	if v := c.file.Value(key); v != nil {
		return v.Scalar
	}
	return ""
}

// parseConfig parses a configuration file strictly: every problem at once, at its line, with what is allowed.
func parseConfig(path string, text []byte) (config, error) {
	c := defaultConfig()
	all := keys(&c)
	var names []string
	for _, k := range all {
		names = append(names, k.name)
	}
	file := strictyaml.Read(path, text, strictyaml.Format{Name: "a configuration", MaxBytes: capConfigBytes, Keys: names})
	file.CheckKeys()
	for _, k := range all {
		v := file.Value(k.name)
		switch {
		case v == nil:
			continue
		case v.Kind == strictyaml.Null:
			file.Refuse(k.name, "", "%s has no value; write %s, or remove the line for the default, %s", k.name, k.allowed, k.initial)
		case !v.Plain():
			file.Refuse(k.name, "", "%s wants %s; found %s", k.name, k.allowed, v.Found())
		case !k.set(v.Scalar):
			file.Refuse(k.name, nearest.Word(v.Scalar, k.words), "%s is %q; allowed is %s", k.name, v.Scalar, k.allowed)
		}
	}
	if jobs := c.limits.Jobs; file.Err() == nil && jobs.RetryLongest < jobs.RetryFirst {
		wrong := "retry_first"
		if file.Has("retry_longest") {
			wrong = "retry_longest"
		}
		file.Refuse(wrong, "", "retry_longest is %v, less than retry_first, %v; the pause grows from the one to the other", jobs.RetryLongest, jobs.RetryFirst)
	}
	c.file = file
	return c, file.Err()
}
