package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Recover makes the record of jobs of a state directory again from the copies in the directories of the jobs, and says on out what
// it does, or with dryRun what it would do. The damaged files are moved aside; nothing is deleted. No daemon may run on the
// state directory.
func Recover(ctx context.Context, state, wanted string, dryRun bool, out io.Writer) (err error) {
	if err := checkOwner(state); err != nil {
		return err
	}
	lock, err := lockState(state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	r := &recovery{state: state, now: time.Now(), out: out}
	if r.raft = raftlog.Check(raftDir(state)); r.raft != nil {
		r.say("damaged: %v", r.raft)
	}
	var damaged *checkpoint.RecordError
	who, kept, err := readIdentity(state, wanted)
	if errors.As(err, &damaged) {
		r.say("damaged: %v", err)
		if who, err = newIdentity(wanted); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if r.raft == nil && damaged == nil {
		return fmt.Errorf("recover: the record of jobs in %s is whole: there is nothing to recover; start the daemon", state)
	}
	if r.raft != nil {
		if err := refuseMember(state, who.Node); err != nil {
			return err
		}
		if err := r.survey(ctx); err != nil {
			return err
		}
	}
	if dryRun {
		r.say("this was a dry run: nothing was changed")
		return nil
	}
	if r.raft != nil {
		err = r.rebuild(ctx, who.Node)
	}
	if err == nil && damaged != nil {
		err = r.aside(identityPath(state))
	}
	if err == nil && !kept {
		err = keepIdentity(state, who)
	}
	if err == nil {
		r.say("recovered: start the daemon")
	}
	return err
}

// refuseMember refuses to make the record of jobs of a node of a cluster again. A log that it began would have neither the authority nor the other
// members, and would be another history than theirs.
func refuseMember(state, node string) error {
	if !pki.IsMember(pkiDir(state)) {
		return nil
	}
	return fmt.Errorf("recover: %s belongs to node %s of a cluster, and a record made from it alone would lose the others: nothing was changed; %s",
		state, node, joinAnew(state, node))
}

// joinAnew is what is to be done about a node of a cluster whose record of jobs is damaged.
func joinAnew(state, node string) string {
	return fmt.Sprintf("the other nodes have the record: have them forget this one (avgpipectl nodes remove %s --force), move %s away, and join with a fresh state "+
		"directory (avgpiped join); where no other node has it, move %s aside, run avgpiped recover, begin a cluster anew (avgpiped init), and have the others join it "+
		"with fresh state directories", node, state, pkiDir(state))
}

// damaged adds to an error of Raft's files what is to be done about them: of a node that is alone they are the only ones.
func damaged(err error, state, node string) error {
	if _, is := errors.AsType[*raftlog.DamageError](err); !is {
		return err
	}
	if pki.IsMember(pkiDir(state)) {
		return fmt.Errorf("%w; %s", err, joinAnew(state, node))
	}
	return fmt.Errorf("%w; restore %s from a backup, with the jobs/ of the same one; without one, avgpiped recover rebuilds the jobs from their directories", err, raftDir(state))
}

// checkOwner refuses to make files that the daemon could not open.
func checkOwner(state string) error {
	info, err := os.Stat(state)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("recover: %s belongs to user %d, and this is user %d, whose files the daemon could not open: run it as that user, "+
			"such as sudo -u '#%d' avgpiped recover", state, owner.Uid, os.Geteuid(), owner.Uid)
	}
	return nil
}

// recovery is one run of Recover.
type recovery struct {
	state string
	now   time.Time
	out   io.Writer
	raft  error // what is wrong with Raft's files; nil: nothing
	jobs  []*cluster.Job
}

func (r *recovery) say(format string, args ...any) {
	fmt.Fprintf(r.out, format+"\n", args...) //nolint:errcheck // for show
}

// survey reads the directories of all jobs.
func (r *recovery) survey(ctx context.Context) error {
	ids, err := agent.JobIDs(r.state)
	if err != nil {
		return err
	}
	for _, id := range ids {
		dir := agent.JobDir(r.state, strconv.FormatUint(id, 10))
		j, err := agent.ReadRecord(dir)
		switch {
		case agent.Removed(dir):
			r.say("job %d: it was removed; the daemon deletes %s when it starts", id, dir)
		case errors.Is(err, fs.ErrNotExist):
			r.say("job %d: not recovered: %s holds no %s; it stays as it is", id, dir, filepath.Base(agent.RecordPath(dir)))
		case err != nil:
			r.say("job %d: not recovered: %v; its directory stays as it is", id, err)
		case j.ID != strconv.FormatUint(id, 10):
			r.say("job %d: not recovered: %s is of job %s; it stays as it is", id, agent.RecordPath(dir), j.ID)
		default:
			r.jobs = append(r.jobs, r.restored(ctx, j, dir))
		}
	}
	if len(r.jobs) == 0 {
		r.say("no job is recovered")
	}
	return nil
}

// restored is a job as it comes back: ended, for a person to decide about.
func (r *recovery) restored(ctx context.Context, j *cluster.Job, dir string) *cluster.Job {
	was := j.State
	if !was.Ended() || j.Ended == nil {
		at := r.now.UTC()
		j.State, j.Ended = cluster.Failed, &at
		j.Reason = fmt.Sprintf("recovered, it was %s; resume it with avgpipectl resume %s", was, j.ID)
	}
	j.Pending, j.Cancelling = 0, false
	j.Generation = max(j.Generation, assignedGeneration(dir))
	var rounds []string
	for _, m := range j.Committed {
		rounds = append(rounds, describeRound(ctx, dir, m))
	}
	if len(rounds) == 0 {
		rounds = []string{"no committed round"}
	}
	r.say("job %s (%s): recovered as %s, it was %s; %s", j.ID, j.Name, j.State, was, strings.Join(rounds, ", "))
	return j
}

// assignedGeneration is the generation of the job's last worker; 0 when that is not known.
func assignedGeneration(dir string) uint64 {
	var a struct{ Generation uint64 }
	text, err := os.ReadFile(control.AssignmentPath(dir))
	if err != nil || json.Unmarshal(text, &a) != nil {
		return 0
	}
	return a.Generation
}

// describeRound reads the shards of a round through, and says what keeps it from being used.
func describeRound(ctx context.Context, dir string, m *cluster.Manifest) string {
	if err := coordinator.CheckRound(ctx, m, shard.StoreAt(control.ShardDir(dir)).Verify); err != nil {
		return fmt.Sprintf("not usable: %v", err)
	}
	return fmt.Sprintf("round %d", m.Round)
}

// rebuild makes a new log with the jobs in it, and puts it in the place of the damaged one.
func (r *recovery) rebuild(ctx context.Context, node string) error {
	made := raftDir(r.state) + ".recovering"
	if err := os.RemoveAll(made); err != nil { // of a recovery that did not end
		return fmt.Errorf("recover: %w", err)
	}
	if err := writeLog(ctx, made, node, r.jobs); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := r.aside(raftDir(r.state)); err != nil {
		return err
	}
	if err := os.Rename(made, raftDir(r.state)); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	return checkpoint.MakeDurable(r.state)
}

// writeLog begins a log that holds the jobs.
func writeLog(ctx context.Context, dir, node string, jobs []*cluster.Job) (err error) {
	log, err := raftlog.Open(raftlog.Config{Dir: dir, NodeID: node, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	if err := log.WaitReady(ctx); err != nil {
		return err
	}
	for _, j := range jobs {
		if _, err := log.Apply(ctx, &cluster.RestoreJob{Saved: *j}); err != nil {
			return err
		}
	}
	return nil
}

// aside moves what is damaged out of the way, if it is there.
func (r *recovery) aside(path string) error {
	to := path + ".damaged-" + r.now.UTC().Format("20060102T150405")
	err := os.Rename(path, to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("recover: move the damaged files aside: %w", err)
	}
	r.say("moved %s to %s", path, to)
	return nil
}
