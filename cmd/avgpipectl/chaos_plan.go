package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// drillFile is a plan of a drill.
type drillFile struct {
	Version int         `yaml:"version" rule:"required min=1 max=1"`
	Steps   []drillStep `yaml:"steps" rule:"required items=1+"`
}

// drillSchema is what such a plan may have.
var drillSchema = strictyaml.SchemaOf[drillFile]("a plan of a drill", 64<<10)

// drillStep is one fault: after the job has reached a round, a command is run, and perhaps another one later that takes the fault away.
type drillStep struct {
	text  string
	round uint64
	run   string
	lasts time.Duration
	undo  string // empty: the fault passes by itself
}

var drillGrammar = regexp.MustCompile(`^after round (\d+) run (.+?)(?: for ([0-9.]+(?:ms|s|m)) then (.+))?$`)

// Wants implements strictyaml.Value.
func (*drillStep) Wants() string {
	return "steps such as `after round 40 run ./kill-worker b`, or `after round 80 run ./cut b for 5s then ./heal b`"
}

// Set implements strictyaml.Value.
func (s *drillStep) Set(text string) bool {
	parts := drillGrammar.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return false
	}
	round, err := strconv.ParseUint(parts[1], 10, 64)
	*s = drillStep{text: strings.TrimSpace(text), round: round, run: parts[2], undo: parts[4]}
	if parts[3] != "" {
		lasts, durationErr := time.ParseDuration(parts[3])
		if s.lasts = lasts; durationErr != nil || lasts > time.Hour {
			return false
		}
	}
	return err == nil
}

// parseDrill reads a plan. The error is strictyaml.Problems: all that is wrong, each with its line.
func parseDrill(file string, source []byte) (*drillFile, error) {
	d, f := &drillFile{}, drillSchema.Read(file, source)
	drillSchema.SetDefaults(d)
	if f.Decode(d) {
		for i := 1; i < len(d.Steps); i++ {
			if d.Steps[i].round < d.Steps[i-1].round {
				f.Refuse(strictyaml.Item("steps", i), "", "steps: round %d comes after round %d; steps are in the order of their rounds",
					d.Steps[i].round, d.Steps[i-1].round)
			}
		}
	}
	return d, f.Err()
}
