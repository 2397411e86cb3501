package ages

import (
	"testing"
	"testing/synctest"
	"time"
)

// jumped is the time now, as a clock says that was set by d: what was written before is by so much older.
func jumped(began time.Time, d time.Duration) map[string]time.Time {
	return map[string]time.Time{"x": began.Add(-d).Round(0)}
}

// TestAJumpOfTheClockDeletesNothing: forwards, where it is set right within the hour; backwards at all.
func TestAJumpOfTheClockDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Ledger
		const age = 24 * time.Hour
		began := time.Now()
		look := func(jump time.Duration) bool { return l.Past(time.Now(), age, jumped(began, jump))["x"] }
		for range 6 {
			if look(4 * 365 * 24 * time.Hour) {
				t.Fatal("it is past right after a jump")
			}
			time.Sleep(10*time.Minute - 1)
		}
		if look(0) || look(-365*24*time.Hour) {
			t.Fatal("it is past by the right clock")
		}
		if look(48 * time.Hour) {
			t.Error("the hour does not begin anew")
		}
		time.Sleep(Hold)
		if !look(48 * time.Hour) {
			t.Error("it is not past after an hour of that")
		}
	})
}

// TestWhatIsOldIsPast once it was for as long as its age, at most an hour.
func TestWhatIsOldIsPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, age := range []time.Duration{time.Second, time.Hour, 30 * 24 * time.Hour} {
			var l Ledger
			began := jumped(time.Now(), 0)
			time.Sleep(age)
			if l.Past(time.Now(), age, began)["x"] {
				t.Errorf("%v: it is past at its age", age)
			}
			time.Sleep(time.Nanosecond)
			if l.Past(time.Now(), age, began)["x"] {
				t.Errorf("%v: it is past at the first look", age)
			}
			time.Sleep(min(age, Hold))
			if !l.Past(time.Now(), age, began)["x"] {
				t.Errorf("%v: it is not past", age)
			}
			if l.Past(time.Now(), age, nil); l.Past(time.Now(), age, began)["x"] {
				t.Errorf("%v: one that was away is past at once", age)
			}
		}
	})
}

func TestNothingBeginsInTheFuture(t *testing.T) {
	now := time.Now()
	for began, want := range map[time.Time]time.Duration{now.Add(-time.Hour): time.Hour, now.Add(time.Hour): 0, now: 0} {
		if got := now.Sub(Since(now, began.Round(0))); got != want {
			t.Errorf("began %v after now: it waits for %v, want %v", began.Sub(now), got, want)
		}
	}
}
