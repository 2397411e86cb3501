package cluster

import (
	"errors"
	"testing"
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

func TestRestoredTakesJobsAndKeepsNumbers(t *testing.T) {
	backup := after(t, NewState(), &SubmitJob{Name: "old"}, &CancelJob{Job: "1"})
	now := after(t, NewState(), &SubmitJob{Name: "other"}, &BeginGeneration{Job: "1", Placement: []byte("1")}, &SubmitJob{Name: "later"})
	if _, err := now.Restored(backup); !errors.Is(err, ErrWorking) {
		t.Fatalf("with a job that works: %v", err)
	}
	now = after(t, now, &CancelJob{Job: "1"}, &CancelJob{Job: "2"})
	got, err := now.Restored(backup)
	if err != nil {
		t.Fatal(err)
	}
	j, err := got.Job("1")
	if err != nil || j.Name != "old" || j.Generation != 1 || len(got.Jobs()) != 1 || got.NextJob != 3 {
		t.Errorf("job %+v of %d, next %d: %v", j, len(got.Jobs()), got.NextJob, err)
	}
	if old, _ := backup.Job("1"); old.Generation != 0 || len(now.Jobs()) != 2 {
		t.Error("the states that it was made of changed")
	}
	now.authority, backup.authority = &Authority{Cluster: "x"}, &Authority{Cluster: "y"}
	if _, err := now.Restored(backup); !errors.Is(err, ErrCluster) {
		t.Errorf("of another cluster: %v", err)
	}
}
