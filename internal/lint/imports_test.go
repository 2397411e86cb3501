package lint

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport is the table of docs/design.md, "Layout": which packages of ours each package may import. A name that
// ends in "/..." stands for the package and everything below it. Tests, and packages named ...test, which tests share, may
// import whatever they need.
var mayImport = map[string][]string{
	// Leaves.
	"internal/access":     nil,
	"internal/nearest":    nil,
	"internal/words":      nil,
	"schedule":            {"internal/nearest", "internal/words"},
	"internal/trace":      {"schedule"},
	"tuner":               {"internal/words", "schedule"},
	"internal/strictyaml": {"internal/nearest"},
	"job":                 {"internal/nearest", "internal/strictyaml", "internal/words"},
	"stage/flat":          nil,
	"stage/device":        {"stage/flat"},
	"internal/ages":       nil,
	"internal/pace":       nil,
	"internal/logging":    nil,
	"internal/chart":      {"internal/words"},
	"internal/checkpoint": nil,
	"internal/history":    {"internal/access", "internal/checkpoint"},
	"internal/lint":       nil,
	"internal/obstacle":   {"internal/checkpoint", "internal/words"},
	"internal/process":    nil,
	"internal/unixhttp":   nil,
	"internal/metric":     nil,
	"internal/noisescale": nil,
	"internal/gpu":        nil,
	"internal/gpu/nvml":   {"internal/gpu"},

	// What knows one thing.
	"stage/device/ref":          {"stage/device", "stage/flat"},
	"stage/device/cpu":          {"stage/device", "stage/device/ref", "stage/flat"},
	"stage/device/emulated":     {"stage/device", "internal/pace"},
	"stage/device/cuda/library": nil,
	"stage/device/cuda/driver":  {"stage/device/cuda/library"},
	"stage/device/cuda/blas":    {"stage/device", "stage/device/cuda/library"},
	"stage/device/cuda/dnn":     {"stage/device", "stage/device/cuda/library"},
	"stage/device/cuda/nccl":    {"stage/device/cuda/library"},
	"stage/device/cuda":         {"stage/device", "stage/device/cuda/blas", "stage/device/cuda/dnn", "stage/device/cuda/driver", "stage/device/cuda/library", "stage/device/cuda/nccl"},
	"stage/device/pick":         {"stage/device", "stage/device/ref", "stage/device/cpu", "stage/device/cuda", "stage/device/emulated"},
	"stage/program":             {"stage/device"},
	"stage/layer":               {"stage/device", "stage/program"},
	"stage/model":               {"stage/device", "stage/layer", "stage/program", "internal/nearest", "internal/words"},
	"stage":                     {"stage/device", "stage/flat", "stage/layer", "stage/model", "stage/program"},
	"stage/generate":            {"stage", "stage/device", "stage/layer", "stage/model"},
	"stage/foreign":             {"internal/process", "stage/device", "stage/layer", "stage/model"},
	"elastic":                   {"stage/flat"},
	"internal/shard":            {"internal/checkpoint"},
	"internal/cluster":          {"internal/shard"},
	"internal/cluster/raftlog":  {"internal/cluster", "internal/checkpoint"},
	"internal/pinned":           {"job"},
	"internal/data":             {"internal/access", "internal/nearest", "internal/pinned", "internal/words", "internal/data/...", "job"},
	"internal/data/tokenizer":   {"internal/access", "internal/nearest"},
	"internal/data/table":       {"internal/access", "internal/nearest"},
	"internal/data/tokenfile":   {"internal/access", "internal/checkpoint"},
	"internal/data/idx":         {"internal/access"},
	"internal/wire":             {"internal/pace", "internal/trace", "schedule", "stage/device"},
	"internal/wire/ucx":         {"internal/wire"},
	"internal/api":              {"internal/gpu", "internal/strictyaml", "tuner", "internal/unixhttp", "internal/words"},
	"internal/footprint":        {"elastic", "internal/jobfile", "job", "schedule", "stage", "stage/device", "stage/layer", "stage/model", "tuner"},
	"internal/spec":             {"internal/access", "internal/footprint", "internal/gpu", "internal/jobfile", "internal/pinned", "internal/placer", "internal/strictyaml", "internal/words", "elastic", "job", "schedule", "stage/...", "tuner"},
	"internal/worker/control":   {"internal/api", "internal/cluster", "internal/gpu", "internal/noisescale", "internal/obstacle", "internal/shard", "internal/spec", "internal/unixhttp", "job", "tuner"},
	"internal/modeldir":         {"internal/checkpoint"},
	"internal/outputdir":        {"internal/access", "internal/modeldir", "internal/process"},
	"internal/manual":           nil,
	"internal/feed":             {"internal/api", "internal/data", "internal/metric", "job", "stage", "stage/device", "stage/layer", "stage/model"},

	// What puts it together.
	"pipeline":             {"stage", "stage/device", "stage/flat", "stage/layer", "schedule", "elastic", "internal/wire", "internal/trace"},
	"internal/export":      {"internal/access", "job", "internal/shard", "stage", "stage/...", "internal/checkpoint", "internal/data/tokenizer"},
	"internal/objectstore": nil,
	"internal/remotedata":  {"internal/access", "internal/checkpoint", "internal/objectstore", "internal/pinned", "internal/words", "job"},
	"internal/archive":     {"internal/cluster", "internal/objectstore", "internal/shard"},
	"internal/accounting":  {"internal/api", "internal/cluster", "internal/data"},
	"internal/reshard":     {"internal/cluster", "internal/export", "internal/shard", "stage"},
	"internal/infer": {
		"internal/api", "internal/data", "internal/data/tokenizer", "internal/export", "internal/feed", "internal/metric", "internal/words", "job",
		"stage", "stage/device", "stage/device/pick", "stage/generate", "stage/layer", "stage/model",
	},
	"internal/worker": {
		"internal/access", "internal/api", "pipeline", "stage/...", "schedule", "tuner", "elastic", "internal/shard", "job",
		"internal/cluster", "internal/worker/control", "internal/wire", "internal/wire/ucx", "internal/trace", "internal/data", "internal/data/tokenizer", "internal/dryrun", "internal/feed", "internal/checkpoint", "internal/export",
		"internal/jobfile", "internal/obstacle", "internal/reshard", "internal/spec",
		"internal/history", "internal/logging", "internal/mux", "internal/noisescale", "internal/pki", "internal/words",
	},
	"internal/profile": {
		"internal/access", "internal/api", "internal/checkpoint", "internal/footprint", "internal/gpu", "internal/obstacle", "internal/spec", "internal/words",
		"tuner", "internal/worker", "internal/worker/control", "internal/trace", "elastic", "job", "schedule",
		"stage", "stage/device", "stage/device/cuda", "stage/foreign", "stage/layer", "stage/model",
	},
	"internal/jobfile": {"elastic", "internal/strictyaml", "job", "schedule", "stage/model"},
	"internal/admission": {
		"internal/access", "internal/agent", "internal/api", "internal/data", "internal/dryrun", "internal/export", "internal/feed", "internal/footprint", "internal/gpu", "internal/jobfile", "internal/modeldir", "internal/outputdir", "internal/pinned", "internal/process", "internal/spec", "internal/strictyaml", "internal/words",
		"job", "schedule", "stage", "stage/device", "stage/device/pick", "stage/foreign", "stage/model",
	},
	"internal/dryrun": {"internal/access", "internal/checkpoint", "job", "stage/foreign", "stage/model"},
	"internal/agent": {
		"internal/access", "internal/api", "internal/checkpoint", "internal/cluster", "internal/gpu", "internal/history", "internal/logging", "internal/obstacle", "internal/ages", "internal/process",
		"internal/shard", "internal/spec", "internal/worker/control",
	},
	"internal/agent/remote": {"internal/agent", "internal/api", "internal/cluster", "internal/history", "internal/obstacle", "internal/shard", "internal/spec", "internal/worker/control"},
	"internal/placer":       {"internal/words", "schedule", "tuner"},
	"internal/coordinator": {
		"internal/agent", "internal/api", "internal/cluster", "internal/drift", "internal/gpu", "internal/obstacle", "internal/ages", "internal/placer", "internal/reshard", "internal/shard", "internal/spec",
		"internal/words", "internal/worker/control", "job", "schedule", "tuner",
	},
	"internal/drift": {"internal/api", "internal/words", "schedule", "tuner"},
	"internal/node": {
		"internal/accounting", "internal/archive", "internal/objectstore", "internal/remotedata", "internal/admission", "internal/agent", "internal/agent/remote", "internal/coordinator", "internal/drift", "internal/gpu", "internal/spec",
		"internal/access", "internal/audit", "internal/membership", "internal/mux", "internal/pki", "internal/server", "job", "schedule", "stage/model", "tuner",
		"internal/api", "internal/checkpoint", "internal/cluster", "internal/cluster/raftlog", "internal/export",
		"internal/modeldir", "internal/nearest", "internal/outputdir", "internal/process",
		"internal/history", "internal/logging", "internal/obstacle", "internal/shard", "internal/trace", "internal/words",
		"internal/worker/control",
	},
	"internal/audit":      nil,
	"internal/membership": nil,
	"internal/mux":        nil,
	"internal/pki":        {"internal/checkpoint", "internal/mux"},
	"internal/server":     {"internal/access", "internal/api", "internal/audit", "internal/gpu", "job"},

	// Programs.
	"cmd/avgpiped": {
		"internal/objectstore", "internal/remotedata", "internal/access", "internal/agent", "internal/coordinator", "internal/logging", "internal/node", "internal/server", "internal/admission", "internal/wire/ucx", "internal/worker/...", "internal/api", "internal/gpu", "internal/gpu/nvml", "internal/infer", "internal/outputdir", "internal/profile", "internal/obstacle", "internal/pki",
		"internal/manual", "internal/nearest", "internal/process", "internal/strictyaml", "internal/words", "job", "stage/device", "stage/device/cuda", "stage/device/pick",
	},
	"cmd/avgpipectl": {"internal/manual", "internal/api", "internal/chart", "internal/checkpoint", "internal/data", "internal/dryrun", "internal/gpu", "internal/jobfile", "internal/modeldir", "internal/nearest", "internal/pki", "internal/strictyaml", "internal/words", "job", "schedule", "stage/device", "stage/foreign", "stage/model", "tuner"},
	"bench/...":      {"..."},
}

// allowed returns the row of mayImport for a package: its own, or that of the nearest "/..." above it.
func allowed(pkg string) (row []string, found bool) {
	if row, found = mayImport[pkg]; found {
		return row, true
	}
	for above := pkg; above != ""; {
		above = above[:max(0, strings.LastIndex(above, "/"))]
		if row, found = mayImport[above+"/..."]; found {
			return row, true
		}
	}
	return nil, false
}

// covers reports whether pattern names pkg: exactly, or as "DIR/..." (and "..." everything).
func covers(pattern, pkg string) bool {
	dir, tree := strings.CutSuffix(pattern, "...")
	if !tree {
		return pattern == pkg
	}
	return dir == "" || pkg == strings.TrimSuffix(dir, "/") || strings.HasPrefix(pkg, dir)
}

// forTests reports whether a package is there for tests to share, as its name says, or is a program that uses such packages: the one that runs the
// conformance suite on a machine with a GPU and without Go (docs/decisions/0075), or the one whose nodes have pretended workers.
func forTests(pkg string) bool {
	return strings.HasSuffix(pkg, "test") || pkg == "bench/gpu" || pkg == "bench/control"
}

func TestImportsPointDown(t *testing.T) {
	for _, s := range allSources(t) {
		if s.test() || forTests(s.dir()) {
			continue
		}
		row, found := allowed(s.dir())
		if !found {
			t.Errorf("%s: package %s has no row in mayImport: add one, here and in docs/design.md", s.name, s.dir())
			continue
		}
		for _, path := range s.imports() {
			pkg, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			if forTests(pkg) {
				t.Errorf("%s: imports %s, which is for tests", s.name, pkg)
			} else if !slices.ContainsFunc(row, func(pattern string) bool { return covers(pattern, pkg) }) {
				t.Errorf("%s: package %s may not import %s, only: %s", s.name, s.dir(), pkg, strings.Join(row, ", "))
			}
		}
	}
}

func TestEveryRowHasAPackage(t *testing.T) {
	dirs := map[string]bool{}
	for _, s := range allSources(t) {
		dirs[s.dir()] = true
	}
	for _, pattern := range slices.Sorted(maps.Keys(mayImport)) {
		found := false
		for dir := range dirs {
			found = found || covers(pattern, dir)
		}
		if !found {
			t.Errorf("mayImport has a row for %s, which has no Go file", pattern)
		}
	}
}

// mayNotLink are the packages that must not end up in a program, however many imports lie between, and why.
var mayNotLink = []struct {
	program, pkg, why string
}{
	{"./cmd/avgpipectl", "github.com/hashicorp/raft", "a command line on a user's machine is no Raft peer"},
	{"./cmd/avgpipectl", module + "/stage/device/ref", "the daemon's host computes, not the user's"},
	{"./cmd/avgpipectl", "github.com/NVIDIA/go-nvml", "it leaves symbols open that no library defines; only a build of the daemon with CUDA does so"},
	{"./cmd/avgpipectl", module + "/internal/node", "the command line speaks to the daemon through its API alone"},
}

func TestProgramsDoNotLink(t *testing.T) {
	linked := map[string][]string{}
	for _, rule := range mayNotLink {
		if linked[rule.program] == nil {
			linked[rule.program] = goList(t, "-deps", "-tags", "onednn", rule.program)
		}
		for _, pkg := range linked[rule.program] {
			if pkg == rule.pkg || strings.HasPrefix(pkg, rule.pkg+"/") {
				t.Errorf("%s links %s: %s", rule.program, pkg, rule.why)
			}
		}
	}
}

// goList runs `go list` at the root of the repository and returns its lines.
func goList(t *testing.T, arguments ...string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"list"}, arguments...)...)
	command.Dir = root
	var problems strings.Builder
	command.Stderr = &problems
	lines, err := command.Output()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", strings.Join(arguments, " "), err, problems.String())
	}
	return strings.Fields(string(lines))
}

// Package testing belongs to tests: linked into a program it adds its flags.
func TestTestingStaysOutOfPrograms(t *testing.T) {
	for _, s := range allSources(t) {
		if s.test() || forTests(s.dir()) {
			continue
		}
		if slices.Contains(s.imports(), "testing") {
			t.Errorf("%s: only _test.go files and packages named ...test import testing", s.name)
		}
	}
}
