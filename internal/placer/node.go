package placer

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Node is a host with what nobody has of it.
type Node struct {
	Name  string
	Cores []int    // that are free
	GPUs  []string // UUIDs of those that are free
	Bytes int64    // of memory that is promised to no job; not looked at where All.Bytes is 0
	All   Capacity // what jobs may have of it together
	// Speed is how fast its devices are, relative to those that the job's costs are of. 0: as fast.
	Speed float64
	// Excluded says why no stage may go there; "": one may.
	Excluded string
	// Unknown says that nobody has heard yet what it has, and that it may have more than All.
	Unknown bool
}

// Capacity is what a node has in all.
type Capacity struct {
	Cores int
	GPUs  int   // that are not sick
	Bytes int64 // of memory; 0: not known
}

// speed is never 0.
func (n *Node) speed() float64 {
	if n.Speed <= 0 {
		return 1
	}
	return n.Speed
}

// bytes is how much memory stages may take there.
func (n *Node) bytes() int64 {
	if n.All.Bytes == 0 {
		return math.MaxInt64
	}
	return max(n.Bytes, 0)
}

// idle is the node with everything that it has free. Cores and GPUs are those that are free, and others without a name.
func (n Node) idle() Node {
	for len(n.Cores) < n.All.Cores {
		n.Cores = append(slices.Clip(n.Cores), -1)
	}
	for len(n.GPUs) < n.All.GPUs {
		n.GPUs = append(slices.Clip(n.GPUs), "")
	}
	n.Bytes = n.All.Bytes
	return n
}

// Link is what lies between two nodes.
type Link struct {
	BitsPerSecond float64
	RoundTrip     time.Duration
	Assumed       bool // nobody has measured BitsPerSecond
	AtLeast       bool // BitsPerSecond is what messages of a job were seen to reach
}

// AssumedLink is a link that nobody has measured: 1 Gbit/s, as the slowest wire between hosts that is still common.
var AssumedLink = Link{BitsPerSecond: 1e9, RoundTrip: 200 * time.Microsecond, Assumed: true}

// Links are those that were measured, by the names of their ends, the lesser first.
type Links map[[2]string]Link

// Between is the link between two nodes.
func (l Links) Between(a, b string) Link {
	if a > b {
		a, b = b, a
	}
	if at, ok := l[[2]string{a, b}]; ok && at.BitsPerSecond > 0 {
		return at
	}
	return AssumedLink
}

// String says for people what a link carries.
func (l Link) String() string {
	least, basis := "", "measured"
	switch {
	case l.Assumed:
		basis = "assumed"
	case l.AtLeast:
		least, basis = "at least ", "seen of a job's messages"
	}
	return fmt.Sprintf("%s%.0f Mbit/s, round trip %v, %s", least, l.BitsPerSecond/1e6, l.RoundTrip.Round(time.Microsecond), basis)
}

// message is the one-way time of a message of so many bytes when no other is on its way, and how long it occupies the link, in seconds.
func (l Link) message(bytes int64) (arrives, occupies float64) {
	occupies = 8 * float64(bytes) / l.BitsPerSecond
	return l.RoundTrip.Seconds()/2 + occupies, occupies
}
