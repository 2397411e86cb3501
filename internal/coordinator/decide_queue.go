package coordinator

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/words"
)

// before is what a reason of a job that waits for room begins with, and after what it ends with.
func (o *observed) before() string {
	if o.hold != nil {
		return "waits to go on after: " + o.hold.String() + "; "
	}
	return "queued: "
}

func (o *observed) after() string {
	if o.hold != nil {
		return "; " + kept(o)
	}
	return ""
}

// decideQueued decides about a job that waits for room what does not depend on others. It reports whether there is anything.
func decideQueued(w snapshot, j *observed) (d decision, over bool) {
	switch {
	case j.lives():
		return dismiss(w, j, "the job starts anew"), true
	case j.Cancelling && j.CommittedRound() > 0:
		return decision{choice: endJob, state: cluster.Cancelled, reason: "cancelled before it went on; " + kept(j)}, true
	case j.Cancelling:
		return decision{choice: endJob, state: cluster.Cancelled, reason: "cancelled before it started"}, true
	case w.stopping:
		return decision{reason: j.before() + "the daemon is stopping" + j.after()}, true
	case j.hopeless != "":
		return decision{choice: endJob, state: cluster.Failed, reason: j.hopeless + "; " + kept(j)}, true
	}
	return decision{}, false
}

// decideTurns starts the jobs whose turn it is, of those that wait for room, and says what the others wait for.
func decideTurns(w snapshot, queue []int, all []decision) {
	waiting := make([]placer.Waiting, 0, len(queue))
	for _, i := range queue {
		j := w.jobs[i]
		waiting = append(waiting, placer.Waiting{ID: j.ID, Priority: j.spec.Job.Priority, Submitted: j.Submitted, Since: j.since, Want: j.want, Takes: j.takes()})
	}
	rooms := w.rooms // as those before leave them
	for _, v := range placer.Order(w.now, w.rooms, w.holders, waiting) {
		j := w.jobs[queue[v.Index]]
		d := &all[queue[v.Index]]
		if split, ok := decideSplit(w, j, &v); ok {
			*d = split
			continue
		}
		if !v.Start {
			d.reason = waitReason(w, j, &waiting[v.Index], &v, rooms) + j.unsplitReason()
			continue
		}
		*d = decideStart(w, j, &v)
		rooms = v.Want.Take(rooms, v.Placed)
	}
}

// decideStart begins what a job has room for.
func decideStart(w snapshot, j *observed, v *placer.Verdict) decision {
	d := decision{choice: place, want: v.Want, placed: v.Placed, before: v.Overtakes != ""}
	if j.hold != nil {
		d.reason = "going on after: " + j.hold.String() + "; "
	}
	if j.spec.Job.Open() {
		d.choice = tune
		d.reason += "tuning on " + coreCount(j.cores)
	} else {
		d.reason += "started on " + coreCount(min(j.cores, w.cores))
	}
	if d.before {
		d.reason += fmt.Sprintf(", before job %s, which it does not delay", v.Overtakes)
	}
	return d
}

// waitReason says what a job that has no room waits for.
func waitReason(w snapshot, j *observed, as *placer.Waiting, v *placer.Verdict, rooms []placer.Node) string {
	if len(rooms) > 1 {
		return j.before() + v.Text(as) + j.after()
	}
	switch {
	case v.Behind != "" && j.hold == nil:
		return "queued behind job " + v.Behind + v.By()
	case v.Behind != "":
		return j.before() + "behind job " + v.Behind + j.after()
	}
	return j.before() + strings.Join(lacking(w, j, rooms[0]), "; ") + v.By() + j.after()
}

// lacking says what a job needs that the only node does not have free. One that wants more cores or memory than there is waits until it is alone. Where the
// node takes nothing new, that alone is why.
func lacking(w snapshot, j *observed, left placer.Node) (all []string) {
	if left.Excluded != "" {
		return []string{left.Excluded}
	}
	if cores := len(left.Cores); j.cores > cores && cores < w.cores {
		all = append(all, coreNeed(j.cores, cores, w.cores))
	}
	if free := len(left.GPUs); j.lacksGPUs(free) {
		all = append(all, gpuNeed(j.gpus, j.spec.Job.Devices.GPU, free, w.gpus))
	}
	if w.memory > 0 && j.memory > left.Bytes && left.Bytes < w.memory {
		all = append(all, fmt.Sprintf("needs %s of memory, %s of %s are not promised to other jobs",
			words.Bytes(j.memory), words.Bytes(max(left.Bytes, 0)), words.Bytes(w.memory)))
	}
	if lack := j.want.Lacking[left.Name]; lack != "" {
		all = append(all, lack)
	}
	return all
}
