package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// costsFile is what a costs file says.
type costsFile struct {
	stages, microBatches, chunks     int
	pipelines, batches, averageEvery int
	awaitRound, exchangeNorm         bool
	unit                             string
	schedules                        []string
	costs                            schedule.Costs
}

// A costs file has at most so many bytes (a thousand stages, each value written out, are less), and counts are no larger.
const (
	capCostsBytes = 256 << 10
	mostCount     = 1 << 16
)

// traceUnits are the values of the key unit, in microseconds.
var traceUnits = map[string]float64{"s": 1e6, "ms": 1e3, "us": 1}

// list says how many values a key has: one for each stage, or for all of them, and so on.
type list uint8

const (
	perStage list = iota
	perLink
	perDevice
)

// costsKeys are the lists of a costs file, in the order in which the help names them.
var costsKeys = []struct {
	key   string
	count list
	times func(*schedule.Costs) *[]float64 // or
	bytes func(*schedule.Costs) *[]int64
}{
	{"forward", perStage, func(c *schedule.Costs) *[]float64 { return &c.Forward }, nil},
	{"backward", perStage, func(c *schedule.Costs) *[]float64 { return &c.Backward }, nil},
	{"backward_input", perStage, func(c *schedule.Costs) *[]float64 { return &c.BackwardInput }, nil},
	{"backward_weight", perStage, func(c *schedule.Costs) *[]float64 { return &c.BackwardWeight }, nil},
	{"update", perStage, func(c *schedule.Costs) *[]float64 { return &c.Update }, nil},
	{"average", perStage, func(c *schedule.Costs) *[]float64 { return &c.Average }, nil},
	{"latency", perLink, func(c *schedule.Costs) *[]float64 { return &c.Link }, nil},
	{"bandwidth", perLink, func(c *schedule.Costs) *[]float64 { return &c.Bandwidth }, nil},
	{"message_bytes", perLink, nil, func(c *schedule.Costs) *[]int64 { return &c.MessageBytes }},
	{"activation_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.ActivationBytes }},
	{"half_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.HalfBytes }},
	{"weight_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.WeightBytes }},
	{"gradient_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.GradientBytes }},
	{"state_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.StateBytes }},
	{"center_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.CenterBytes }},
	{"utilisation", perDevice, func(c *schedule.Costs) *[]float64 { return &c.Utilisation }, nil},
	{"capacity_bytes", perDevice, nil, func(c *schedule.Costs) *[]int64 { return &c.CapacityBytes }},
}

// costsCounts are the whole numbers of a costs file.
var costsCounts = []struct {
	key   string
	value func(*costsFile) *int
	least int
}{
	{"stages", func(c *costsFile) *int { return &c.stages }, 1},
	{"micro_batches", func(c *costsFile) *int { return &c.microBatches }, 1},
	{"chunks", func(c *costsFile) *int { return &c.chunks }, 1},
	{"pipelines", func(c *costsFile) *int { return &c.pipelines }, 1},
	{"batches", func(c *costsFile) *int { return &c.batches }, 1},
	{"average_every", func(c *costsFile) *int { return &c.averageEvery }, 1},
}

// costsParser reads a costs file.
type costsParser struct {
	file     string
	lines    []string
	problems job.Problems
	values   map[string]ast.Node
	keys     map[string]*token.Token
}

// parseCosts reads a costs file: source is its text, file its name for messages. The error is job.Problems: all that is wrong,
// each with its line.
func parseCosts(file string, source []byte) (*costsFile, error) {
	p := costsParser{file: file, lines: strings.Split(string(source), "\n"), values: map[string]ast.Node{}, keys: map[string]*token.Token{}}
	c := &costsFile{}
	if p.read(source); len(p.problems) == 0 {
		if p.counts(c); len(p.problems) == 0 { // they say how many values lists have
			p.lists(c)
		}
		p.words(c)
	}
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b job.Problem) int { return a.Line - b.Line })
		return nil, p.problems
	}
	return c, nil
}

// problem reports what is wrong at a token; nil is the file as a whole.
func (p *costsParser) problem(at *token.Token, key, near, format string, args ...any) {
	problem := job.Problem{File: p.file, Line: 1, Column: 1, Key: key, Message: fmt.Sprintf(format, args...), Nearest: near}
	if at != nil && at.Position != nil {
		problem.Line, problem.Column = at.Position.Line, at.Position.Column
	}
	if problem.Line <= len(p.lines) {
		problem.Text = strings.TrimSuffix(p.lines[problem.Line-1], "\r")
	}
	p.problems = append(p.problems, problem)
}

// read finds the keys and their values.
func (p *costsParser) read(source []byte) {
	file, err := parseYAML(source)
	if err != nil {
		var at *token.Token
		message := err.Error()
		if located, ok := errors.AsType[yaml.Error](err); ok {
			at, message = located.GetToken(), located.GetMessage()
		}
		p.problem(at, "", "", "not YAML: %s", message)
		return
	}
	var entries []*ast.MappingValueNode
	for _, doc := range file.Docs {
		switch body := doc.Body.(type) {
		case nil:
		case *ast.MappingNode:
			entries = append(entries, body.Values...)
		case *ast.MappingValueNode:
			entries = append(entries, body)
		default:
			p.problem(body.GetToken(), "", "", "a costs file is a mapping of keys to values: %s", strings.Join(knownCosts(), ", "))
		}
	}
	for _, entry := range entries {
		at := entry.Key.GetToken()
		switch key := at.Value; {
		case !slices.Contains(knownCosts(), key):
			p.problem(at, key, nearest.Word(key, knownCosts()), "unknown key %q; known: %s", key, strings.Join(knownCosts(), ", "))
		case p.keys[key] != nil:
			p.problem(at, key, "", "key %q is here twice; it stands first at line %d", key, p.keys[key].Position.Line)
		default:
			p.keys[key], p.values[key] = at, entry.Value
		}
	}
}

// parseYAML calls the YAML parser, which may panic on input that is far from YAML; that is the file's fault.
func parseYAML(source []byte) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			file, err = nil, fmt.Errorf("the parser gave up (%v)", r)
		}
	}()
	return parser.ParseBytes(source, 0, parser.AllowDuplicateMapKey())
}

func knownCosts() []string {
	var keys []string
	for _, c := range costsCounts {
		keys = append(keys, c.key)
	}
	keys = append(keys, "pull", "clip_norm", "unit", "schedules")
	for _, k := range costsKeys {
		keys = append(keys, k.key)
	}
	return keys
}

// counts reads the whole numbers.
func (p *costsParser) counts(c *costsFile) {
	for _, count := range costsCounts {
		node, found := p.values[count.key]
		if !found {
			if count.key == "stages" || count.key == "micro_batches" {
				p.problem(nil, count.key, "", "%s is missing; write its number, such as %s: 4", count.key, count.key)
			}
			continue
		}
		n, err := strconv.Atoi(node.GetToken().Value)
		if err != nil || n < count.least || n > mostCount {
			p.problem(node.GetToken(), count.key, "", "%s is %s; want a whole number, %d to %d", count.key, node.String(), count.least, mostCount)
			continue
		}
		*count.value(c) = n
	}
}

// words reads the words and the schedules.
func (p *costsParser) words(c *costsFile) {
	c.unit = p.word("unit", "s", "ms", "us")
	c.awaitRound = p.word("pull", "old", "new", "elastic") == "new"
	c.exchangeNorm = p.word("clip_norm", "true", "false") == "true"
	node, found := p.values["schedules"]
	if !found {
		return
	}
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		p.problem(node.GetToken(), "schedules", "", "schedules is no list; want names, such as [gpipe, 1f1b, afp]")
		return
	}
	for _, item := range sequence.Values {
		name := item.GetToken().Value
		if !slices.Contains(schedule.Names(), name) {
			p.problem(item.GetToken(), "schedules", nearest.Word(name, schedule.Names()), "schedule %q is unknown; known: %s", name, strings.Join(schedule.Names(), ", "))
		}
		c.schedules = append(c.schedules, name)
	}
}

// word reads a key that has one of a few values; "" where the file does not have it.
func (p *costsParser) word(key string, valid ...string) string {
	node, found := p.values[key]
	if !found {
		return ""
	}
	value := node.GetToken().Value
	if !slices.Contains(valid, value) {
		last := len(valid) - 1
		p.problem(node.GetToken(), key, "", "%s %q; want %s or %s", key, value, strings.Join(valid[:last], ", "), valid[last])
	}
	return value
}

// lists reads the times and bytes.
func (p *costsParser) lists(c *costsFile) {
	for _, k := range costsKeys {
		node, found := p.values[k.key]
		if !found {
			if k.key == "forward" || k.key == "backward" {
				p.problem(nil, k.key, "", "%s is missing; write its time, one for all stages or a list with one a stage", k.key)
			}
			continue
		}
		n, unit := c.stages, "stage"
		switch k.count {
		case perLink:
			n, unit = c.stages-1, "link"
		case perDevice:
			unit = "device"
		case perStage:
		}
		values, ok := p.list(k.key, node, n, unit)
		if !ok {
			continue
		}
		if k.times != nil {
			*k.times(&c.costs) = values
			continue
		}
		bytes := make([]int64, len(values))
		for i, v := range values {
			bytes[i] = int64(v)
		}
		*k.bytes(&c.costs) = bytes
	}
	if len(p.problems) > 0 {
		return
	}
	if err := c.costs.Validate(c.stages); err != nil {
		p.problem(p.keys["bandwidth"], "", "", "%v", err) // all else has been checked value by value
	}
}

// list reads n values, or one for all of them.
func (p *costsParser) list(key string, node ast.Node, n int, unit string) ([]float64, bool) {
	items := []ast.Node{node}
	if sequence, ok := node.(*ast.SequenceNode); ok {
		if items = sequence.Values; len(items) != n {
			p.problem(node.GetToken(), key, "", "%s has %s for %s; want one for all, or one a %s", key, words.Count(len(items), "value"), words.Count(n, unit), unit)
			return nil, false
		}
	}
	values := make([]float64, n)
	good := true
	for i, item := range items {
		v, message := costsValue(key, item)
		if message != "" {
			p.problem(item.GetToken(), key, "", "%s", message)
			good = false
		}
		if len(items) == n {
			values[i] = v
			continue
		}
		for j := range values {
			values[j] = v
		}
	}
	return values, good
}

// costsValue reads a value, or says what is wrong with it.
func costsValue(key string, node ast.Node) (float64, string) {
	text := node.GetToken().Value
	v, err := strconv.ParseFloat(text, 64)
	bytes := strings.HasSuffix(key, "_bytes")
	switch {
	case err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0:
		want := "a time, 0 or more"
		if bytes {
			want = "a number of bytes, 0 or more"
		} else if key == "bandwidth" {
			want = "bytes a unit of time, or 0 for a link without limit"
		}
		return 0, fmt.Sprintf("%s is %s; want %s", key, text, want)
	case bytes && (v != math.Trunc(v) || v >= 1<<53):
		return 0, fmt.Sprintf("%s is %s; want a whole number of bytes", key, text)
	case key == "utilisation" && (v <= 0 || v > 1):
		return 0, fmt.Sprintf("utilisation is %s; want the share of a device that one op uses, above 0 and at most 1", text)
	}
	return v, ""
}
