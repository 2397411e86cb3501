package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// after applies commands to a state.
func after(t *testing.T, s *State, commands ...Command) *State {
	t.Helper()
	for _, c := range commands {
		next, _, err := s.Apply(s.Index+1, c)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	return s
}

func TestRestoredBringsBackJobsAndKeepsTheOthers(t *testing.T) {
	day := time.Date(2026, 5, 6, 0, 0, 0, 0, time.UTC)
	both := &SubmitJob{Name: "both", Submitted: day}
	backup := after(t, NewState(), both, &SubmitJob{Name: "gone"}, &SubmitJob{Name: "removed before"}, &CancelJob{Job: "3"}, &RemoveJob{Job: "3"}, &CancelJob{Job: "2"})
	now := after(t, NewState(), both, &BeginGeneration{Job: "1", Placement: []byte("1")})
	if _, _, err := now.Restored(backup, day, ""); !errors.Is(err, ErrWorking) {
		t.Fatalf("with a job that works: %v", err)
	}
	now = after(t, now, &CancelJob{Job: "1"})
	got, back, err := now.Restored(backup, day, "")
	if err != nil || len(back) != 1 || back[0].Name != "gone" {
		t.Fatal(back, err)
	}
	if j, err := got.Job("1"); err != nil || j.Generation != 1 || len(got.Jobs()) != 2 || got.NextJob != 4 {
		t.Errorf("job %+v of %d, next %d: %v", j, len(got.Jobs()), got.NextJob, err)
	}
	if len(now.Jobs()) != 1 || len(backup.Jobs()) != 2 || now.NextJob != 2 {
		t.Error("the states that it was made of changed")
	}
	now.authority, backup.authority = &Authority{Cluster: "x"}, &Authority{Cluster: "y"}
	if _, _, err := now.Restored(backup, day, ""); !errors.Is(err, ErrCluster) {
		t.Errorf("of another cluster: %v", err)
	}
}

// TestAJobThatWorkedComesBackForAPersonToResume: its workers are gone, and nothing may begin by itself.
func TestAJobThatWorkedComesBackForAPersonToResume(t *testing.T) {
	backup := after(t, NewState(), &SubmitJob{Name: "running"}, &BeginGeneration{Job: "1", Placement: []byte("1")}, &RequestCancel{Job: "1", By: "ada"})
	at := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	got, _, err := NewState().Restored(backup, at, "a backup")
	if err != nil {
		t.Fatal(err)
	}
	j, err := got.Job("1")
	if err != nil || j.State != Failed || j.Cancelling || j.Ended == nil || !j.Ended.Equal(at) || !strings.Contains(j.Reason, "a backup, where it was starting") {
		t.Errorf("job %+v: %v", j, err)
	}
}

// TestAnotherJobOfTheSameNumberIsRefused, not taken for the one of the backup: its files are another job's.
func TestAnotherJobOfTheSameNumberIsRefused(t *testing.T) {
	day := time.Date(2026, 5, 6, 0, 0, 0, 0, time.UTC)
	backup := after(t, NewState(), &SubmitJob{Name: "a", Submitted: day}, &CancelJob{Job: "1"})
	now := after(t, NewState(), &SubmitJob{Name: "b", Submitted: day.AddDate(0, 0, 1)}, &CancelJob{Job: "1"})
	if _, _, err := now.Restored(backup, day, ""); !errors.Is(err, ErrAnotherJob) || !strings.Contains(err.Error(), `"b"`) {
		t.Error(err)
	}
}
