package admission

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/schedule"
)

// keys are those of a job file, by their full names, each of which has a line of its own.
type keys map[string]string

// averaged is a job that every method and schedule takes.
func averaged(changed keys) keys {
	k := keys{
		"version": "1", "name": "x", "model.family": "gpt2", "model.config": "{n_layer: 4, n_head: 2, n_embd: 8, n_positions: 8, vocab_size: 256}", "data.files": "[x]",
		"optimizer.name": "sgd", "optimizer.lr": "0.1", "optimizer.clip_norm": "0", "train.steps": "64", "train.batch": "4", "train.only": "['h.*']", "stages": "2", "micro_batches": "4", "tuning": "rules",
	}
	maps.Copy(k, changed)
	return k
}

// file is the job file, and the key of each line.
func (k keys) file() (source string, at []string) {
	section := ""
	for _, key := range slices.SortedFunc(maps.Keys(k), func(a, b string) int {
		return strings.Compare(strings.TrimPrefix("0"+a, strings.Repeat("0", strings.Count(a, "."))), strings.TrimPrefix("0"+b, strings.Repeat("0", strings.Count(b, "."))))
	}) {
		of, name, nested := strings.Cut(key, ".")
		switch {
		case !nested:
			source += fmt.Sprintf("%s: %s\n", key, k[key])
		case of != section:
			source, at, section = source+of+":\n", append(at, of), of
			fallthrough
		default:
			source += fmt.Sprintf("  %s: %s\n", name, k[key])
		}
		at = append(at, key)
	}
	return source, at
}

// with is a job file with other keys; an empty value is that of a key that it does not have.
func (k keys) with(changed keys) keys {
	out := maps.Clone(k)
	maps.Copy(out, changed)
	maps.DeleteFunc(out, func(_, value string) bool { return value == "" })
	return out
}

// admit returns what is wrong with the job.
func (k keys) admit(t *testing.T, base string) strictyaml.Problems {
	t.Helper()
	source, _ := k.file()
	q := Request{Submit: api.SubmitRequest{File: "job.yaml", Source: source, Base: base}, User: access.User{UID: uint32(os.Geteuid())}, Host: Host{Cores: 2}}
	_, err := Admit(t.Context(), q, func(string) {})
	refused, is := errors.AsType[*api.Error](err)
	if err != nil && !is {
		t.Fatalf("%v: %v", k, err)
	}
	if err == nil {
		return nil
	}
	return refused.Problems
}

var (
	written = regexp.MustCompile(`(?:write|remove it)[^;]*`)
	pair    = regexp.MustCompile(`([a-z_.]+): ([\w.-]+)`)
)

// advice is each way that a problem offers to put the job right.
func advice(p *strictyaml.Problem, k keys) (ways []keys) {
	if _, has := k[p.Key]; has && p.Nearest != "" && !strings.Contains(p.Nearest, " or ") {
		ways = append(ways, keys{p.Key: p.Nearest})
	}
	text := written.FindString(p.Message)
	text, without, _ := strings.Cut(text, " without ") // what has to go with the other method
	for one := range strings.SplitSeq(text, " or ") {
		way := keys{}
		if strings.Contains(one, "remove it") {
			way[p.Key] = ""
		}
		for _, found := range pair.FindAllStringSubmatch(one, -1) {
			key := found[1]
			if section := strictyaml.Parent(p.Key); slices.Contains(strings.Split("method tau pull prediction compensation lambda stale_layers", " "), key) {
				key = "averaging." + key
			} else if key == "name" {
				key = section + "." + key
			}
			way[key] = found[2]
			if key == "averaging.method" && without != "" {
				for name := range strings.SplitSeq(without, " and ") {
					way["averaging."+name] = ""
				}
			}
		}
		if len(way) > 0 {
			ways = append(ways, way)
		}
	}
	return ways
}

// averagedJobs are pairs of a method and a schedule, an optimizer or a setting, by numbers of pipelines and groups.
func averagedJobs() (all []keys) {
	settings := keys{
		"alpha": "0.9", "pull": "elastic", "horizon": "2", "max_drift": "0.1", "outer_lr": "1", "outer_momentum": "0", "fragments": "2", "mix": "0", "warmup": "2", "stale_layers": "2",
		"prediction": "prev_sync", "compensation": "diag", "lambda": "1", "tau": "3", "precision": "bf16",
	}
	for _, method := range elastic.Methods() {
		needs := []keys{{"averaging.method": method}}
		if method == "sapipe" {
			needs = append(needs, keys{"averaging.method": method, "averaging.stale_layers": "2"}, keys{"averaging.method": method, "averaging.stale_layers": "1", "averaging.prediction": "local"})
		}
		if method == "elastic" {
			needs = append(needs, keys{"averaging.method": method, "averaging.pull": "elastic"})
		}
		for _, need := range needs {
			for _, count := range [][2]string{{"1", "1"}, {"2", "1"}, {"4", "1"}, {"2", "2"}, {"4", "2"}} {
				base := averaged(need).with(keys{"pipelines": count[0], "groups": count[1]})
				for _, name := range schedule.Names() {
					all = append(all, base.with(keys{"schedule": name}))
				}
				for _, name := range []string{"asgd", "adam", "adamw"} {
					all = append(all, base.with(keys{"optimizer.name": name}))
				}
				for setting, value := range settings {
					all = append(all, base.with(keys{"averaging." + setting: value}))
				}
			}
		}
	}
	return all
}

// TestRefusalsOfAveragingLeadToAJobThatIsAccepted: each points at a key that it names, and the job that does what it advises is accepted.
func TestRefusalsOfAveragingLeadToAJobThatIsAccepted(t *testing.T) {
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "x"), []byte(strings.Repeat("some text\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused, followed, said := 0, 0, map[string]bool{}
	for _, k := range averagedJobs() {
		problems := k.admit(t, base)
		if len(problems) == 0 {
			continue
		}
		refused++
		source, at := k.file()
		for _, p := range problems {
			key := at[p.Line-1]
			if _, has := k[key]; !has || !strings.Contains(p.Message, key) {
				t.Errorf("%v\npoints at %s, which it does not name, in\n%s", p, key, source)
			}
		}
		if len(problems) > 1 || said[k["pipelines"]+problems[0].Message+k["schedule"]] {
			continue
		}
		said[k["pipelines"]+problems[0].Message+k["schedule"]] = true
		ways := advice(&problems[0], k)
		if len(ways) == 0 {
			t.Errorf("%v\nadvises nothing", problems)
		}
		for _, way := range ways {
			followed++
			if again := k.with(way).admit(t, base); len(again) > 0 {
				t.Errorf("%v\nadvises %v, which is refused:\n%v", problems, way, again)
			}
		}
	}
	if refused < 100 || followed < 50 {
		t.Errorf("%d jobs were refused and %d pieces of advice followed, expected more", refused, followed)
	}
}

// TestWhatABudgetOfEpochsIsTooShortForIsRefused before anything starts, as with one in steps, where the data tell how many samples an epoch has.
func TestWhatABudgetOfEpochsIsTooShortForIsRefused(t *testing.T) {
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "x"), []byte(strings.Repeat("some text\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	of := averaged(keys{"train.steps": "", "train.epochs": "0.08", "pipelines": "2", "averaging.method": "diloco"}).with(nil) // 48 samples
	for _, c := range []struct {
		changed keys
		want    string
	}{
		{nil, ""},
		{keys{"averaging.method": "streaming-diloco", "averaging.fragments": "2"}, ""},
		{keys{"averaging.tau": "4"}, ""},
		{keys{"averaging.tau": "auto", "averaging.tau_most": "2"}, ""}, // fewer than diloco takes in a long run
		{keys{"averaging.tau": "auto", "averaging.tau_most": "1"}, "averaging.tau_most is 1: of this job, with method diloco, at least 2 are chosen; want tau_most: 2 or more"},
		{keys{"averaging.tau": "32"}, "averaging.tau is 32, so a round takes 256 samples, more than all of the budget (0.08 epochs); want a shorter round or a larger budget"},
		{keys{"optimizer.warmup": "100"}, "optimizer.warmup is 100 steps, more than the 12 of the budget (0.08 epochs)"},
		{keys{"averaging.method": "easgd-async", "averaging.tau": "6"}, "averaging.tau is 6, and the budget (0.08 epochs) has 1 round of it"},
	} {
		problems := of.with(c.changed).admit(t, base)
		if c.want == "" && len(problems) > 0 || c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Message, c.want)) {
			t.Errorf("%v: %v, want %q", c.changed, problems, c.want)
		}
	}
}

// TestASinglePipelineIsAveragedWithNobody, so that no method rules out a schedule or an optimizer for it.
func TestASinglePipelineIsAveragedWithNobody(t *testing.T) {
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "x"), []byte(strings.Repeat("some text\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, method := range elastic.Methods() {
		for _, name := range schedule.Names() {
			for _, optimizer := range []string{"sgd", "asgd", "adamw"} {
				k := averaged(keys{"averaging.method": method, "pipelines": "1", "schedule": name, "optimizer.name": optimizer})
				if method == "sapipe" {
					k["averaging.stale_layers"] = "2"
				}
				if problems := k.admit(t, base); len(problems) > 0 {
					t.Errorf("%s, %s, %s: %v", method, name, optimizer, problems)
				}
			}
		}
	}
}
