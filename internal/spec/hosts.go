package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// Host is what a node of several has for jobs.
type Host struct {
	Name        string `json:"name"`
	Cores       int    `json:"cores"`        // that jobs compute on
	MemoryBytes int64  `json:"memory_bytes"` // that jobs may take; 0: not known
}

// mostNamed bounds how many nodes a message lists.
const mostNamed = 4

// spreads reports whether stages may lie on several nodes.
func (f *Facts) spreads() bool { return len(f.Hosts) > 1 && f.alone == "" }

// cores are those of all nodes that a job may take.
func (f *Facts) cores() (n int) {
	if !f.spreads() {
		return f.Cores
	}
	for _, h := range f.Hosts {
		n += h.Cores
	}
	return n
}

// hostBytes is the memory of all nodes that a job may take; 0: that of one is not known.
func (f *Facts) hostBytes() (bytes int64) {
	if !f.spreads() {
		return f.MemoryBytes
	}
	for _, h := range f.Hosts {
		if h.MemoryBytes == 0 {
			return 0
		}
		bytes += h.MemoryBytes
	}
	return bytes
}

// roomy is the node with the most memory.
func (f *Facts) roomy() Host {
	return slices.MaxFunc(f.Hosts, func(a, b Host) int { return cmp.Compare(a.MemoryBytes, b.MemoryBytes) })
}

// host says what the nodes give to jobs.
func (f *Facts) host() string {
	if !f.spreads() {
		return fmt.Sprintf("this node has %s for jobs%s", words.Bytes(f.MemoryBytes), f.alone)
	}
	most := slices.SortedStableFunc(slices.Values(f.Hosts), func(a, b Host) int { return cmp.Compare(b.MemoryBytes, a.MemoryBytes) })
	var each []string
	for _, h := range most[:min(len(most), mostNamed)] {
		each = append(each, fmt.Sprintf("%s %s", h.Name, words.Bytes(h.MemoryBytes)))
	}
	if more := len(most) - len(each); more > 0 {
		each = append(each, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("the %d nodes have %s together for jobs (%s)", len(f.Hosts), words.Bytes(f.hostBytes()), strings.Join(each, ", "))
}

// unplaced is what is short where no way to put the stages on nodes, each with all that it has, has room for them; nil where one has. A job with more
// devices than all nodes have cores for takes a node as a whole.
func (f *Facts) unplaced(a *arrangement, inHost []int64) *tuner.Shortage {
	total, largest := int64(0), 0
	for s, bytes := range inHost {
		if total += bytes; bytes > inHost[largest] {
			largest = s
		}
	}
	short := &tuner.Shortage{Device: -1, Largest: largest, Need: total, Capacity: f.hostBytes()}
	for s := range inHost {
		short.Stages = append(short.Stages, s)
	}
	if short.Capacity == 0 {
		return nil
	}
	nodes, threads := make([]placer.Node, 0, len(f.Hosts)), int(a.job.Devices.CPU.Threads)
	for _, h := range f.Hosts {
		n := placer.Node{Name: h.Name, Cores: make([]int, h.Cores), Bytes: h.MemoryBytes, All: placer.Capacity{Cores: h.Cores, Bytes: h.MemoryBytes}}
		for core := range n.Cores {
			n.Cores[core] = core
		}
		nodes = append(nodes, n)
	}
	want := placer.Job{Devices: a.plan.Placement(), Threads: threads, Bytes: inHost, Groups: min(a.job.Groups, len(nodes))}
	if a.job.Groups <= 1 && f.roomy().MemoryBytes >= total || placer.Fits(want, nodes) {
		return nil
	}
	if want.Bytes = nil; a.job.Groups > 1 && !placer.Fits(want, nodes) {
		a.crowded = true
	}
	return short
}

// refuseCrowded refuses groups for which the nodes have too few cores, whatever their memory is, and says what would fit.
func (x *resolver) refuseCrowded() {
	var each []string
	for _, h := range x.Hosts[:min(len(x.Hosts), mostNamed)] {
		each = append(each, fmt.Sprintf("%s %d", h.Name, h.Cores))
	}
	if more := len(x.Hosts) - len(each); more > 0 {
		each = append(each, fmt.Sprintf("%d more", more))
	}
	var fit []string
	first := func(key string, most int, set func(j *job.Job, n int)) {
		for n := most; n > 0 && !x.brief; n-- {
			j := x.Job
			set(&j, n)
			if int(j.Pipelines)%max(1, j.Groups) != 0 {
				continue
			}
			if a, err := x.arrange(&j); err == nil && len(a.short) == 0 {
				fit = append(fit, fmt.Sprintf("%s: %d", key, n))
				return
			}
		}
	}
	if x.UserPlan == nil && len(x.Job.Recompute) <= 1 {
		first("stages", int(x.Job.Stages)-1, func(j *job.Job, n int) { j.Stages = job.Count(n) })
	}
	first("groups", x.Job.Groups-1, func(j *job.Job, n int) { j.Groups = n })
	advice, near := "neither fewer stages nor fewer groups make it fit", ""
	if len(fit) > 0 {
		advice, near = strings.Join(fit, " or ")+" would fit", fit[0]
	}
	x.refuse("groups", near, "groups is %d: groups of %s, each group on nodes of its own, find no cores on the %d nodes (cores: %s); %s",
		x.Job.Groups, words.Count(int(x.Job.Stages), "stage"), len(x.Hosts), strings.Join(each, ", "), advice)
}

// copies says how many copies of a shard so many nodes have.
func copies(nodes int) string {
	if nodes == 1 {
		return "is 1 copy"
	}
	return fmt.Sprintf("are %d copies", nodes)
}

// whyUnplaced says why stages have no room on nodes that together may have enough memory.
func (f *Facts) whyUnplaced(memory []tuner.Memory, short *tuner.Shortage) string {
	switch {
	case !f.spreads() || short.Need > short.Capacity:
		return ""
	case memory[short.Largest].Total() > f.roomy().MemoryBytes:
		return fmt.Sprintf("; no node has room for stage %d", short.Largest)
	}
	return "; no way to put its stages, and the cores that they take, on these nodes has room for all of them"
}
