package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// config is the configuration file.
type config struct {
	file *strictyaml.Document // nil: none was read

	stateDir    string
	socket      string
	group       string
	adminGroup  string
	metrics     string // address; empty: off
	node        string
	cores       int
	orphanAfter time.Duration
	logLevel    zapcore.Level

	responseTimeout, retryFirst, retryLongest, quarantineFor time.Duration
	retryLimit                                               int

	retain   coordinator.Retention
	logBytes int64
	logFiles int
}

// defaultConfig is what an empty file means.
func defaultConfig() config {
	return config{
		stateDir: "/var/lib/avgpipe", socket: api.DefaultSocket, group: "avgpipe", adminGroup: "avgpipe-admin", orphanAfter: time.Hour, logLevel: zapcore.InfoLevel,
		responseTimeout: 30 * time.Second, retryLimit: 10, retryFirst: 500 * time.Millisecond, retryLongest: time.Minute,
		quarantineFor: 24 * time.Hour,
		retain:        coordinator.Retention{Jobs: 100, Share: 0.25}, logBytes: 16 << 20, logFiles: 3,
	}
}

// limits are the values of live keys that the node reads.
func (c *config) limits() node.Limits {
	return node.Limits{
		Agent: agent.Limits{OrphanAfter: c.orphanAfter, QuarantineFor: c.quarantineFor, LogBytes: c.logBytes, LogFiles: c.logFiles},
		Jobs: coordinator.Limits{
			ResponseTimeout: c.responseTimeout, RetryLimit: c.retryLimit, RetryFirst: c.retryFirst, RetryLongest: c.retryLongest, Retain: c.retain,
		},
	}
}

// key is one key of the configuration file.
type key struct {
	name    string
	doc     string
	initial string // the default, for people
	allowed string // for messages
	live    bool   // may change while the daemon runs: config.limits or reload hands it on
	set     func(c *config, text string) error
}

// keys is every key, in the order of the help.
var keys = []key{
	{
		"state_dir", "where everything lies that outlives a restart", "/var/lib/avgpipe", "an absolute path", false,
		func(c *config, text string) error { return setPath(&c.stateDir, text) },
	},
	{
		"socket", "where avgpipectl finds the daemon", api.DefaultSocket, "an absolute path", false,
		func(c *config, text string) error { return setPath(&c.socket, text) },
	},
	{
		"group", "whose members may use the socket; the default may be missing", "avgpipe", "the name of a group of this host", false,
		func(c *config, text string) error { return setGroup(&c.group, text) },
	},
	{
		"admin_group", "whose members may read, export and cancel the jobs of everybody; the default may be missing", "avgpipe-admin", "the name of a group of this host", false,
		func(c *config, text string) error { return setGroup(&c.adminGroup, text) },
	},
	{
		"metrics_address", "where metrics and health are served over TCP, to whoever can connect", "off", "off, or an address such as 127.0.0.1:9464", false,
		func(c *config, text string) error { return setAddress(&c.metrics, text) },
	},
	{
		"node", "this node's name, for good", "the host's name", "a name", false,
		func(c *config, text string) error { return setText(&c.node, text) },
	},
	{
		"cores", "processor cores that jobs compute on; 0 is all", "0", "a number, 0 or more", false,
		func(c *config, text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is not a number of cores", text)
			}
			c.cores = n
			return nil
		},
	},
	{
		"orphan_after", "how long workers go on without a daemon", "1h", "a time of at least 1s, such as 90s, 10m or 1h", true,
		func(c *config, text string) error { return setTime(&c.orphanAfter, time.Second, text) },
	},
	{
		"response_timeout", "how long a worker may not answer before it is killed", "30s", "a time of at least 1s, such as 30s or 2m", true,
		func(c *config, text string) error { return setTime(&c.responseTimeout, time.Second, text) },
	},
	{
		"retry_limit", "how many workers of a job may die, without a commit in between, before it fails", "10", "a number, 1 or more", true,
		func(c *config, text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a number of at least 1", text)
			}
			c.retryLimit = n
			return nil
		},
	},
	{
		"retry_first", "the pause before the second restart of a job without a commit in between; it doubles", "500ms",
		"a time of at least 1ms, such as 500ms or 5s", true,
		func(c *config, text string) error { return setTime(&c.retryFirst, time.Millisecond, text) },
	},
	{
		"retry_longest", "the pause that it doubles to", "1m", "a time of at least 1ms, such as 1m", true,
		func(c *config, text string) error { return setTime(&c.retryLongest, time.Millisecond, text) },
	},
	{
		"quarantine_for", "how long shards are kept that no committed round names", "24h", "a time of at least 1s, such as 24h", true,
		func(c *config, text string) error { return setTime(&c.quarantineFor, time.Second, text) },
	},
	{
		"keep_ended_jobs", "ended jobs that are kept; the oldest are removed first", "100", "a number, 1 or more, or none for no bound", true,
		func(c *config, text string) error { return setBound(&c.retain.Jobs, text) },
	},
	{
		"keep_ended_age", "how long an ended job is kept", "none", "a time of at least 1m, such as 720h, or none for no bound", true,
		func(c *config, text string) error {
			c.retain.Age = 0
			if text == "none" {
				return nil
			}
			return setTime(&c.retain.Age, time.Minute, text)
		},
	},
	{
		"keep_ended_bytes", "what ended jobs may take on the disk; the last one always stays", "25%",
		"bytes such as 500MB or 2TB, a share of the disk such as 25%, or none for no bound", true,
		func(c *config, text string) error { return setSpace(&c.retain, text) },
	},
	{
		"worker_log_bytes", "when a job's log is rotated", "16MB", "bytes, at least 4KB, such as 16MB", true,
		func(c *config, text string) error { return setBytes(&c.logBytes, 4<<10, text) },
	},
	{
		"worker_log_files", "rotated logs that a job keeps beside the current one", "3", "a number, 1 to 99", true,
		func(c *config, text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > 99 {
				return fmt.Errorf("%q is not a number from 1 to 99", text)
			}
			c.logFiles = n
			return nil
		},
	},
	{
		"log_level", "debug, info, warn or error", "info", "debug, info, warn or error", true,
		func(c *config, text string) error {
			if !slices.Contains(words["log_level"], text) {
				return fmt.Errorf("%q is not a level", text)
			}
			return c.logLevel.UnmarshalText([]byte(text))
		},
	},
}

// words are the values of keys that are words, for whoever mistypes one.
var words = map[string][]string{
	"log_level": {"debug", "info", "warn", "error"}, "metrics_address": {"off"},
	"keep_ended_jobs": {"none"}, "keep_ended_age": {"none"}, "keep_ended_bytes": {"none"},
}

// setAddress reads host:port; off is empty.
func setAddress(to *string, text string) error {
	if text == "off" {
		*to = ""
		return nil
	}
	_, port, err := net.SplitHostPort(text)
	if n, numeric := strconv.ParseUint(port, 10, 16); err != nil || numeric != nil || n == 0 {
		return fmt.Errorf("%q is not an address with a port", text)
	}
	*to = text
	return nil
}

func setPath(to *string, text string) error {
	if !strings.HasPrefix(text, "/") {
		return fmt.Errorf("%q is not an absolute path", text)
	}
	*to = text
	return nil
}

func setTime(to *time.Duration, least time.Duration, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < least {
		return fmt.Errorf("%q is not a time of at least %v", text, least)
	}
	*to = d
	return nil
}

// setBound reads a number of at least 1; none is 0.
func setBound(to *int, text string) error {
	if text == "none" {
		*to = 0
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a number of at least 1", text)
	}
	*to = n
	return nil
}

// setSpace reads what ended jobs may take: bytes, or a share of the disk.
func setSpace(to *coordinator.Retention, text string) error {
	to.Bytes, to.Share = 0, 0
	if text == "none" {
		return nil
	}
	percent, ok := strings.CutSuffix(text, "%")
	if !ok {
		return setBytes(&to.Bytes, 1, text)
	}
	n, err := strconv.ParseFloat(percent, 64)
	if err != nil || !(n > 0 && n <= 100) { // not a number is neither
		return fmt.Errorf("%q is not a share above 0%% and up to 100%%", text)
	}
	to.Share = n / 100
	return nil
}

// units are those of bytes. Larger ones are powers of 1,024.
var units = []struct {
	name  string
	bytes int64
}{{"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40}, {"B", 1}, {"", 1}}

// setBytes reads a number of bytes with its unit.
func setBytes(to *int64, least int64, text string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 1 || n > math.MaxInt64/u.bytes || n*u.bytes < least {
			break
		}
		*to = n * u.bytes
		return nil
	}
	return fmt.Errorf("%q is not a number of bytes of at least %d", text, least)
}

func setText(to *string, text string) error {
	if text == "" {
		return fmt.Errorf("it is empty")
	}
	*to = text
	return nil
}

// setGroup reads the name of a group that exists, as far as this host can tell. The default may be missing, written or not.
func setGroup(to *string, text string) error {
	if text == *to {
		return nil
	}
	_, err := user.LookupGroup(text)
	if _, unknown := errors.AsType[user.UnknownGroupError](err); unknown {
		return fmt.Errorf("there is no group %q on this host", text)
	}
	return setText(to, text)
}

// configHelp lists the keys for the help.
func configHelp() string {
	var b strings.Builder
	for _, k := range keys {
		mark := ' '
		if k.live {
			mark = '*'
		}
		fmt.Fprintf(&b, "%c %-16s %s (default: %s)\n", mark, k.name, k.doc, k.initial)
	}
	return b.String()
}

// readConfig reads a configuration file, and the texts of its keys. A file that somebody has to correct is a configError.
func readConfig(path string) (config, map[string]string, error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return config{}, nil, &configError{fmt.Errorf("read the configuration: %w", err)}
	case err != nil: // of the host, and it may pass
		return config{}, nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(bytes.TrimSpace(text)) == 0 { // as while somebody writes it
		return config{}, nil, &configError{fmt.Errorf("the configuration is refused\n%s is empty; a comment is enough where every key has its default", path)}
	}
	c, texts, err := parseConfig(path, text)
	if err != nil {
		return c, nil, refused(err)
	}
	return c, texts, nil
}

func refused(err error) error {
	return &configError{fmt.Errorf("the configuration is refused\n%w", err)}
}

// explain makes an error of the node about a key of its configuration one of the file, at the key's line.
func (c *config) explain(err error) error {
	wrong, ok := errors.AsType[*node.KeyError](err)
	switch {
	case !ok:
		return err
	case c.file == nil:
		return &configError{err}
	}
	c.file.Refuse(wrong.Key, "", "%v", wrong.Err)
	return refused(c.file.Err())
}

// capConfigBytes bounds a configuration file.
const capConfigBytes = 64 << 10

// parseConfig parses a configuration file strictly: every problem at once, at its line, with what is allowed.
func parseConfig(path string, text []byte) (config, map[string]string, error) {
	c, texts := defaultConfig(), map[string]string{}
	file := strictyaml.Read(path, text, strictyaml.Format{Name: "a configuration", MaxBytes: capConfigBytes, Keys: keyNames()})
	file.CheckKeys()
	for _, k := range keys {
		v := file.Value(k.name)
		if v == nil {
			continue
		}
		switch texts[k.name] = v.Scalar; {
		case v.Kind == strictyaml.Null:
			file.Refuse(k.name, "", "%s has no value; write %s, or remove the line for the default, %s", k.name, k.allowed, k.initial)
		case !v.Plain():
			file.Refuse(k.name, "", "%s wants %s; found %s", k.name, k.allowed, v.Found())
		default:
			if err := k.set(&c, v.Scalar); err != nil {
				file.Refuse(k.name, nearest.Word(v.Scalar, words[k.name]), "%s: %v; allowed is %s", k.name, err, k.allowed)
			}
		}
	}
	c.file = file
	return c, texts, file.Err()
}

func keyNames() []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}
