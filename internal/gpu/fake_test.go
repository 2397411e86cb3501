package gpu

import (
	"fmt"
	"sync"
	"time"
)

// fake is a source that answers what it is told to.
type fake struct {
	mu       sync.Mutex
	found    []Sample
	failures []Failure
	err      error
	hang     chan struct{} // not nil: Sample waits for it
	xids     chan XID
	closed   bool
}

func newFake(n int) *fake {
	f := &fake{xids: make(chan XID)}
	for i := range n {
		f.found = append(f.found, Sample{GPU: GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Name: "A100", MemoryBytes: 40 << 30}})
	}
	return f
}

// set changes what the source answers.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) Sample() ([]Sample, []Failure, error) {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Sample(nil), f.found...), f.failures, f.err
}

func (f *fake) WaitXID(bound time.Duration) (*XID, error) {
	select {
	case x := <-f.xids:
		return &x, nil
	case <-time.After(bound):
		return nil, nil
	}
}

func (f *fake) Close() error {
	f.set(func() { f.closed = true })
	return nil
}
