package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// config is the configuration file. In a tag, `does` says for the help what a key is for; keys that are `live` may change while the daemon
// runs, and the default of those that are `ofhost` is the host's.
type config struct {
	file *strictyaml.Document // nil: none was read

	StateDir       string        `yaml:"state_dir" default:"/var/lib/avgpipe" pattern:"^/" form:"an absolute path" does:"where everything lies that outlives a restart"`
	Socket         string        `yaml:"socket" default:"/run/avgpipe/avgpiped.sock" pattern:"^/" form:"an absolute path" does:"where avgpipectl finds the daemon"`
	Group          group         `yaml:"group" default:"avgpipe" rule:"word=avgpipe" does:"whose members may use the socket; the default may be missing"`
	AdminGroup     group         `yaml:"admin_group" default:"avgpipe-admin" rule:"word=avgpipe-admin" does:"whose members may read, export and cancel the jobs of everybody; the default may be missing"`
	Metrics        address       `yaml:"metrics_address" default:"off" rule:"word=off" does:"where metrics and health are served over TCP, to whoever can connect"`
	Listen         address       `yaml:"listen" default:"off" rule:"word=off" does:"where the other nodes and clients with certificates reach a node that is one of several"`
	Advertise      address       `yaml:"advertise" default:"listen" rule:"word=listen" does:"the address that the other nodes are told; the default is listen, where that is no wildcard"`
	Node           string        `yaml:"node" pattern:"^[\\pL\\pN._-]{1,64}$" form:"a name of up to 64 letters, digits, dots, dashes and underscores" does:"this node's name, for good"`
	Cores          int           `yaml:"cores" default:"0" rule:"min=0" does:"processor cores that jobs compute on; 0 is all"`
	GPUs           []graphics    `yaml:"gpus" default:"all" rule:"each=GPU" does:"graphics processors that jobs may use: all, none, or a list of indices and UUIDs of nvidia-smi -L; [] is none"`
	CUDADriver     string        `yaml:"cuda_driver" default:"libcuda.so.1" pattern:"^(/.+|[^/]+)$" form:"an absolute path, or a name that the loader finds" does:"the CUDA driver's library"`
	CUDALibraries  directories   `yaml:"cuda_libraries" default:"none" rule:"word=none" does:"directories with cuBLAS and cuDNN, colons between them, before those where the loader looks"`
	UCX            ucxDevices    `yaml:"ucx_devices" default:"none" rule:"word=none" does:"network devices whose network you trust, commas between them: links between nodes may go over UCX there, unencrypted"`
	S3Endpoint     string        `yaml:"s3_endpoint" default:"https://s3.amazonaws.com" pattern:"^https?://[^/]+/?$" form:"https://HOST or http://HOST:PORT" does:"the server of the buckets that center.store of jobs names"`
	S3Region       string        `yaml:"s3_region" default:"us-east-1" pattern:"^[a-z0-9-]{1,64}$" form:"a region" does:"the region of these buckets"`
	S3Credentials  credentials   `yaml:"s3_credentials" default:"none" rule:"word=none" does:"a file with the access key in its first line and the secret key in its second; without it no job has a store"`
	DataSources    directory     `yaml:"data_sources" default:"none" rule:"word=none" does:"a directory with a file for each bucket or web server that jobs may read data from"`
	DataCache      space         `yaml:"data_cache" default:"25%" rule:"word=none" does:"what the copies of such data may take on the disk; what no job reads goes first"`
	OrphanAfter    time.Duration `yaml:"orphan_after" default:"1h" rule:"min=1s" live:"yes" does:"how long workers go on without a daemon"`
	Response       time.Duration `yaml:"response_timeout" default:"30s" rule:"min=1s" live:"yes" does:"how long a worker may not answer, at most, before it is killed"`
	RetryLimit     int           `yaml:"retry_limit" default:"10" rule:"min=1" live:"yes" does:"how many workers of a job may die, without a commit in between, before it fails"`
	RetryFirst     time.Duration `yaml:"retry_first" default:"500ms" rule:"min=1ms" live:"yes" does:"the pause before the second restart of a job without a commit in between; it doubles"`
	RetryLongest   time.Duration `yaml:"retry_longest" default:"1m" rule:"min=1ms" live:"yes" does:"the pause that it doubles to"`
	ResplitAfter   time.Duration `yaml:"resplit_after" default:"1m" rule:"min=1s" live:"yes" does:"how long a node must be gone before its jobs go on with fewer stages where no other has room, and before they get stages or groups of pipelines back"`
	QuarantineFor  time.Duration `yaml:"quarantine_for" default:"24h" rule:"min=1s" live:"yes" does:"how long shards are kept that no committed round names"`
	KeepJobs       int           `yaml:"keep_ended_jobs" default:"100" rule:"min=1 word=none" live:"yes" does:"ended jobs that are kept; the oldest are removed first"`
	KeepAge        time.Duration `yaml:"keep_ended_age" default:"none" rule:"min=1m word=none" live:"yes" does:"how long an ended job is kept"`
	KeepBytes      space         `yaml:"keep_ended_bytes" default:"25%" rule:"word=none" live:"yes" does:"what ended jobs may take on the disk; the last one always stays"`
	WorkerLogBytes logBytes      `yaml:"worker_log_bytes" default:"16MB" live:"yes" does:"when a job's log is rotated"`
	WorkerLogFiles int           `yaml:"worker_log_files" default:"3" rule:"min=1 max=99" live:"yes" does:"rotated logs that a job keeps beside the current one"`
	LogLevel       string        `yaml:"log_level" default:"info" rule:"oneof=debug|info|warn|error" live:"yes" does:"debug, info, warn or error"`
}

// schema is what a configuration file may have.
var schema = strictyaml.SchemaOf[config]("a configuration", 64<<10)

// defaultConfig is what an empty file means.
func defaultConfig() (c config) {
	schema.SetDefaults(&c)
	return c
}

// limits are those that may change while the daemon runs.
func (c *config) limits() node.Limits {
	return node.Limits{
		Agent: agent.Limits{OrphanAfter: c.OrphanAfter, LogBytes: int64(c.WorkerLogBytes), LogFiles: c.WorkerLogFiles, QuarantineFor: c.QuarantineFor},
		Jobs: coordinator.Limits{
			ResponseTimeout: c.Response, RetryLimit: c.RetryLimit, RetryFirst: c.RetryFirst, RetryLongest: c.RetryLongest,
			ResplitAfter: c.ResplitAfter,
			Retain:       coordinator.Retention{Jobs: c.KeepJobs, Age: c.KeepAge, Bytes: c.KeepBytes.bytes, Share: c.KeepBytes.share},
		},
	}
}

// level is how much is logged.
func (c *config) level() zapcore.Level {
	level, _ := zapcore.ParseLevel(c.LogLevel) // its words are zap's
	return level
}

// group is the name of a group that exists, as far as this host can tell; empty: the default, which may be missing.
type group string

// Wants implements strictyaml.Value.
func (*group) Wants() string { return "the name of a group of this host" }

// Set implements strictyaml.Value.
func (g *group) Set(text string) bool {
	_, err := user.LookupGroup(text)
	_, unknown := errors.AsType[user.UnknownGroupError](err)
	*g = group(text)
	return text != "" && !unknown
}

// address is one of TCP; empty: none.
type address string

// Wants implements strictyaml.Value.
func (*address) Wants() string { return "an address such as 127.0.0.1:9464" }

// Set implements strictyaml.Value.
func (a *address) Set(text string) bool {
	_, port, err := net.SplitHostPort(text)
	n, numeric := strconv.ParseUint(port, 10, 16)
	*a = address(text)
	return err == nil && numeric == nil && n > 0
}

// directory is the path of a directory; empty: none.
type directory string

// Wants implements strictyaml.Value.
func (*directory) Wants() string { return "the absolute path of a directory" }

// Set implements strictyaml.Value.
func (d *directory) Set(text string) bool {
	*d = directory(text)
	return filepath.IsAbs(text)
}

// graphics names graphics processors: all, none, an index or a UUID.
type graphics string

var graphicsNames = regexp.MustCompile(`^(all|none|0|[1-9]\d{0,3}|(GPU|MIG)-[\w/-]+)$`)

// Wants implements strictyaml.Value.
func (*graphics) Wants() string { return "all, none, the index or the UUID of a GPU" }

// Set implements strictyaml.Value.
func (g *graphics) Set(text string) bool {
	*g = graphics(text)
	return graphicsNames.MatchString(text)
}

// selection is what gpus means, where CUDA_VISIBLE_DEVICES may hide some.
func (c *config) selection() gpu.Selection {
	s := gpu.Selection{Wanted: []string{}, LeastCapability: cuda.LeastCapability}
	for _, g := range c.GPUs {
		s.Wanted = append(s.Wanted, string(g))
	}
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		s.Visible = &visible
	}
	return s
}

// space is what ended jobs, or copies of data, may take: bytes, or a share of the disk. Zero is no bound.
type space struct {
	bytes int64
	share float64
}

// Wants implements strictyaml.Value.
func (*space) Wants() string { return "bytes such as 500MB or 2TB, a share of the disk such as 25%" }

// Set implements strictyaml.Value.
func (s *space) Set(text string) (ok bool) {
	percent, share := strings.CutSuffix(text, "%")
	if !share {
		s.bytes, ok = bytesOf(text)
		return ok
	}
	n, err := strconv.ParseFloat(percent, 64)
	s.share = n / 100
	return err == nil && n > 0 && n <= 100 // not a number is neither
}

// logBytes is how long a log may grow.
type logBytes int64

// Wants implements strictyaml.Value.
func (*logBytes) Wants() string { return "bytes, at least 4KB, such as 16MB" }

// Set implements strictyaml.Value.
func (b *logBytes) Set(text string) bool {
	n, ok := bytesOf(text)
	*b = logBytes(n)
	return ok && n >= 4<<10
}

// units are those of bytes. Larger ones are powers of 1,024.
var units = []struct {
	name  string
	bytes int64
}{{"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40}, {"B", 1}, {"", 1}}

// bytesOf reads a number of bytes with its unit.
func bytesOf(text string) (int64, bool) {
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			n, err := strconv.ParseInt(number, 10, 64)
			return n * u.bytes, err == nil && n >= 1 && n <= math.MaxInt64/u.bytes
		}
	}
	return 0, false
}

// initial is the default of a key.
func initial(k strictyaml.Field) string { return cmp.Or(k.Default, "the host's name") }

// isLive reports whether a key may change while the daemon runs.
func isLive(k strictyaml.Field) bool { return k.Tag.Get("live") != "" }

// configHelp lists the keys for the help.
func configHelp() string {
	var b strings.Builder
	for _, k := range schema.Fields {
		mark := ' '
		if isLive(k) {
			mark = '*'
		}
		fmt.Fprintf(&b, "%c %-16s %s (default: %s)\n", mark, k.Key, k.Tag.Get("does"), initial(k))
	}
	return b.String()
}

// readConfig reads a configuration file. One that somebody has to correct is a configError.
func readConfig(path string) (config, error) {
	text, err := (*access.Opener)(nil).ReadFile(path, int64(schema.MaxBytes))
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

// text is what the file says of a key; "", which no key may be, where it does not have it.
func (c *config) text(key string) string {
	v := c.file.Value(key)
	if v == nil {
		return ""
	}
	texts := []string{v.Scalar}
	for _, item := range v.Items {
		texts = append(texts, item.Scalar)
	}
	return strings.TrimSpace(strings.Join(texts, " "))
}

// parseConfig parses a configuration file strictly: every problem at once, at its line, with what is allowed.
func parseConfig(path string, text []byte) (config, error) {
	c := defaultConfig()
	file := schema.Read(path, text)
	file.Decode(&c)
	if file.Err() == nil && c.RetryLongest < c.RetryFirst {
		wrong := "retry_first"
		if file.Has("retry_longest") {
			wrong = "retry_longest"
		}
		file.Refuse(wrong, "", "retry_longest is %v, less than retry_first, %v; the pause grows from the one to the other", c.RetryLongest, c.RetryFirst)
	}
	for i, g := range c.GPUs {
		switch first := slices.Index(c.GPUs, g); {
		case file.Err() != nil || len(c.GPUs) == 1:
		case g == "all" || g == "none":
			file.Refuse(strictyaml.Item("gpus", i), "gpus: "+string(g), "gpus has %s in a list of %d; it stands alone, for all of the list", g, len(c.GPUs))
		case first < i:
			file.Refuse(strictyaml.Item("gpus", i), "", "gpus has %s twice, at places %d and %d; name each GPU once", g, first+1, i+1)
		}
	}
	c.file = file
	return c, file.Err()
}
