package spec

import (
	"encoding/json"
	"sync"
)

// Cache decodes each spec once. Its methods may be called concurrently; what it returns is shared and must not be changed.
type Cache struct{ specs sync.Map } // cached, by job

// cached is a spec and what it was decoded from.
type cached struct {
	text, report json.RawMessage
	spec         *Spec
}

// Get returns the spec of a job, as Decode does.
func (c *Cache) Get(id string, text, report json.RawMessage) (*Spec, error) {
	value, _ := c.specs.Load(id)
	if old, found := value.(cached); found && same(old.text, text) && same(old.report, report) {
		return old.spec, nil
	}
	s, err := Decode(id, text, report)
	if err != nil {
		return nil, err
	}
	if !s.Job.Open() {
		s.Placement() // before it is shared
	}
	c.specs.Store(id, cached{text, report, s})
	return s, nil
}

// same reports whether two texts are one in memory: the replicated state shares those that have not changed.
func same(a, b json.RawMessage) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Forget drops a job.
func (c *Cache) Forget(id string) { c.specs.Delete(id) }
