package placer

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Need says what a job takes in all: "4 cores, 2 GPUs and 3.0 GB of memory".
func (j *Job) Need() (text string) {
	var all []string
	if n := j.Threads * j.rows(); n > 0 {
		all = append(all, words.Count(n, "core"))
	}
	if j.GPUs > 0 {
		all = append(all, words.Count(min(j.GPUs, j.rows()), "GPU"))
	}
	if j.Groups > 1 {
		defer func() { text += fmt.Sprintf(" for each of %d groups, on nodes of its own", j.Groups) }()
	}
	if bytes := j.bytes(); bytes > 0 {
		all = append(all, words.Bytes(bytes)+" of memory")
	}
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}

// bytes is the memory of all stages.
func (j *Job) bytes() (sum int64) {
	for _, b := range j.Bytes {
		sum += b
	}
	return sum
}

// mostNamed bounds the nodes that are named where a job has no room. Of more, those that have the same free are told of together.
const mostNamed = 16

// noRoom says of each node what it lacks.
func (f *finder) noRoom() *NoRoomError {
	if len(f.nodes)+len(f.excluded) > mostNamed {
		return f.noRoomInMany()
	}
	e := &NoRoomError{}
	for i := range f.nodes {
		e.Lacks = append(e.Lacks, f.nodes[i].Name+": "+f.nodes[i].free(f.job))
	}
	for i := range f.excluded {
		e.Lacks = append(e.Lacks, f.excluded[i].Name+": "+f.excluded[i].Excluded)
	}
	return e
}

// noRoomInMany says it of nodes that have the same free together, and of those that may have no stage how many there are.
func (f *finder) noRoomInMany() *NoRoomError {
	type alike struct {
		room
		all Capacity
	}
	count, e := map[alike]int{}, &NoRoomError{}
	var first []int // of each kind
	for i := range f.nodes {
		kind := alike{f.nodes[i].room(), f.nodes[i].All}
		if count[kind]++; count[kind] == 1 {
			first = append(first, i)
		}
	}
	for k, i := range first {
		if k == mostNamed {
			e.Lacks = append(e.Lacks, fmt.Sprintf("%d kinds of others have no room either", len(first)-k))
			break
		}
		n := &f.nodes[i]
		others := ""
		if c := count[alike{n.room(), n.All}]; c > 1 {
			others = " and " + words.Count(c-1, "other")
		}
		e.Lacks = append(e.Lacks, n.Name+others+": "+n.free(f.job))
	}
	if c := len(f.excluded); c > 0 {
		others := ""
		if c > 1 {
			others = fmt.Sprintf(" (and %s that may have no stage)", words.Count(c-1, "other"))
		}
		e.Lacks = append(e.Lacks, f.excluded[0].Name+": "+f.excluded[0].Excluded+others)
	}
	return e
}

// free says what a node has free of what a job takes.
func (n *Node) free(j *Job) string {
	var all []string
	if j.Threads > 0 {
		all = append(all, fmt.Sprintf("%d of %d cores", len(n.Cores), n.All.Cores))
	}
	if j.GPUs > 0 {
		all = append(all, fmt.Sprintf("%d of %s", len(n.GPUs), words.Count(n.All.GPUs, "GPU")))
	}
	if n.All.Bytes > 0 && j.bytes() > 0 {
		all = append(all, fmt.Sprintf("%s of %s of memory", words.Bytes(n.bytes()), words.Bytes(n.All.Bytes)))
	}
	return strings.Join(all, ", ") + " free"
}
