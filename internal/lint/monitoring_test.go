package lint

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/server"
)

// monitored is a backend with a value for every metric.
type monitored struct{ server.Backend }

func (monitored) Jobs(context.Context) ([]api.JobStatus, error) {
	v := 1.0
	return []api.JobStatus{{
		ID: "1", Name: "a", State: api.Running, Loss: &v, EvalLoss: &v, BatchS: &v, PredictedBatchS: &v,
		Metrics: api.Metrics{Perplexity: &v, Accuracy: &v, F1: &v}, Tuning: &api.TuneProgress{Done: 1, Total: 2}, StageStatus: []api.StageStatus{{}},
	}}, nil
}

func (monitored) Version() api.VersionInfo { return api.VersionInfo{Version: "v"} }

func (monitored) NodeMetrics() server.NodeMetrics {
	one, many, share := 1, uint64(1), 0.5
	return server.NodeMetrics{LastTick: time.Now(), GPUs: []gpu.GPUStatus{{
		GPU: gpu.GPU{Health: gpu.Health{Level: gpu.Sick, Reasons: []gpu.Reason{{Code: "remap_failed"}}}}, XIDs: []gpu.XID{{Code: 31}},
		Readings: gpu.Readings{
			Utilization: &share, MemoryFreeBytes: new(int64(1)), PowerWatts: &share, PowerLimitWatts: &share, TemperatureC: &one, SMClockMHz: &one,
			MemoryClockMHz: &one, Throttled: []string{"idle"}, ECCCorrected: &many, ECCUncorrected: &many, Rows: &gpu.Rows{}, RetiredPages: &one, NVLinks: &one,
		},
	}}}
}

// metricLabels returns the labels of each metric that the daemon has.
func metricLabels(t *testing.T) map[string]map[string]bool {
	t.Helper()
	w := httptest.NewRecorder()
	server.Handler(server.Config{Backend: monitored{}, Log: zap.NewNop()}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, api.PathMetrics, http.NoBody))
	all := map[string]map[string]bool{"up": {}} // Prometheus's own
	for line := range strings.Lines(w.Body.String()) {
		if m := regexp.MustCompile(`^([a-z_0-9]+)(?:\{(.*)\})? \S+$`).FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			if all[m[1]] == nil {
				all[m[1]] = map[string]bool{}
			}
			for _, label := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
				all[m[1]][label[1]] = true
			}
		}
	}
	if len(all) < 40 {
		t.Fatalf("the daemon has %d metrics: %v", len(all), slices.Sorted(maps.Keys(all)))
	}
	return all
}

var (
	quoted    = regexp.MustCompile(`"[^"]*"`)
	selector  = regexp.MustCompile(`([a-z_][a-z0-9_]*)\s*(\{[^}]*\})?(\s*\()?`)
	matcher   = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	grouping  = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
	notMetric = []string{"and", "or", "unless", "bool", "offset", "m", "s", "h", "d"}
)

// checkQuery holds the metrics and labels of a query against those that there are. It knows the part of PromQL that our files use.
func checkQuery(t *testing.T, where, query string, known map[string]map[string]bool) {
	t.Helper()
	text := quoted.ReplaceAllString(query, `""`)
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(text, pair[:1]) != strings.Count(text, pair[1:]) {
			t.Errorf("%s: %s is not closed in %s", where, pair[:1], query)
		}
	}
	labels := map[string]bool{"instance": true, "job": true} // of the scrape
	var asked []string
	for _, g := range grouping.FindAllStringSubmatch(text, -1) {
		for name := range strings.SplitSeq(g[1], ",") {
			asked = append(asked, strings.TrimSpace(name))
		}
	}
	text = regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(grouping.ReplaceAllString(text, ""), "")
	metrics := 0
	for _, m := range selector.FindAllStringSubmatch(text, -1) {
		if m[3] != "" || slices.Contains(notMetric, m[1]) {
			continue // a function
		}
		metrics++
		if known[m[1]] == nil {
			t.Errorf("%s: the daemon has no metric %s, in %s", where, m[1], query)
			continue
		}
		maps.Copy(labels, known[m[1]])
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if name := l[1]; name != "instance" && name != "job" && !known[m[1]][name] {
				t.Errorf("%s: %s has no label %s, in %s", where, m[1], name, query)
			}
		}
	}
	for _, name := range asked {
		if !labels[name] {
			t.Errorf("%s: nothing in it has a label %s: %s", where, name, query)
		}
	}
	if metrics == 0 {
		t.Errorf("%s: no metric in %q", where, query)
	}
}

func TestBoardAsksForMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "deploy/grafana-avgpiped.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	known := metricLabels(t)
	taken := map[[2]int]string{}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 || p.Title == "" {
			t.Errorf("panel %d has no title or no query", p.ID)
		}
		for _, target := range p.Targets {
			checkQuery(t, p.Title, target.Expr, known)
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				found := m[1] == "instance"
				for name, labels := range known {
					found = found || strings.Contains(target.Expr, name) && labels[m[1]]
				}
				if !found {
					t.Errorf("%s: the legend names a label %s, which no metric of %s has", p.Title, m[1], target.Expr)
				}
			}
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" || at[0] >= 24 {
					t.Errorf("%s lies over %q, or outside of the board, at %v", p.Title, taken[at], at)
				}
				taken[at] = p.Title
			}
		}
	}
}

func TestAlertsAskForMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "deploy/prometheus-alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	known := metricLabels(t)
	seen := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("alert %q: a name of its own, a severity and a summary are needed", r.Alert)
			}
			seen[r.Alert] = true
			checkQuery(t, r.Alert, r.Expr, known)
		}
	}
	if len(seen) == 0 {
		t.Error("no alerts")
	}
}
