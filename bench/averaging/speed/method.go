package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/elastic"
)

// The names that stand for no averaging method.
const (
	ddp  = "ddp"  // PyTorch's DistributedDataParallel
	none = "none" // every replica by itself: what a step takes without any exchange
)

// method is what is measured: a name, and settings as NAME:KEY=VALUE:KEY=VALUE has them.
type method struct {
	name     string
	settings []string // KEY=VALUE, in the order given
	tau      int      // steps of a round
	bucket   float64  // of ddp, in MB
}

// defaultBucket is PyTorch's own bucket_cap_mb.
const defaultBucket = 25

// apart is how many steps replicas are apart that are to exchange nothing while they are measured.
const apart = 100_000

// methodOf parses a method. Its settings are those of the section averaging of a job file, which checks them.
func methodOf(text string) (method, error) {
	name, rest, _ := strings.Cut(text, ":")
	m := method{name: name, tau: 1, bucket: defaultBucket}
	known := append([]string{none, ddp}, elastic.Methods()...)
	if !slices.Contains(known, name) {
		return m, fmt.Errorf("no method %q; there are %s", name, strings.Join(known, ", "))
	}
	if rest != "" {
		m.settings = strings.Split(rest, ":")
	}
	for _, setting := range m.settings {
		key, value, ok := strings.Cut(setting, "=")
		var err error
		switch {
		case !ok || key == "" || value == "":
			err = fmt.Errorf("no setting; expected KEY=VALUE")
		case name == none || name == ddp && key != "bucket":
			err = fmt.Errorf("no setting of it")
		case key == "bucket":
			m.bucket, err = strconv.ParseFloat(value, 64)
		case key == "tau":
			m.tau, err = strconv.Atoi(value)
		}
		if err == nil && (m.tau < 1 || m.bucket <= 0) {
			err = fmt.Errorf("it must be above 0")
		}
		if err != nil {
			return m, fmt.Errorf("method %s: %q: %w", name, setting, err)
		}
	}
	return m, nil
}

func (m method) String() string { return strings.Join(append([]string{m.name}, m.settings...), " ") }

// section is the method as the section averaging of a job file.
func (m method) section() string {
	if m.name == none {
		return fmt.Sprintf("{method: localsgd, tau: %d}", apart)
	}
	parts := []string{"method: " + m.name}
	for _, setting := range m.settings {
		parts = append(parts, strings.Replace(setting, "=", ": ", 1))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
