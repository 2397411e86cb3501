package nearest

import "testing"

func TestWordGuessesWhatWasMeant(t *testing.T) {
	words := []string{"steps", "batch", "max_time", "eval_every", "eval_samples"}
	for got, want := range map[string]string{
		"step": "steps", "stpes": "steps", "Batch": "batch", "maxtime": "max_time", "eval_evry": "eval_every",
		"eval_sample": "eval_samples", "frobnicate": "", "": "", "x": "", "pteps": "steps", "evl_smples": "eval_samples",
	} {
		if near := Word(got, words); near != want {
			t.Errorf("%q: nearest is %q, want %q", got, near, want)
		}
	}
}

// TestBeginningGuessesOnlyWhatIsClear: of two words that begin so, neither.
func TestBeginningGuessesOnlyWhatIsClear(t *testing.T) {
	words := []string{"steps", "batch", "max_time", "eval_every", "eval_samples"}
	for got, want := range map[string]string{"batch_per_device": "batch", "max_": "max_time", "eval": "", "max": "", "": ""} {
		if near := Beginning(got, words); near != want {
			t.Errorf("%q: nearest is %q, want %q", got, near, want)
		}
	}
}

// TestOfEquallyNearWordsOneBeginsAlike, wherever it stands.
func TestOfEquallyNearWordsOneBeginsAlike(t *testing.T) {
	for _, words := range [][]string{{"tuning", "running"}, {"running", "tuning"}} {
		if near := Word("runing", words); near != "running" { //nolint:misspell // as somebody types it
			t.Errorf("of %v: %q", words, near)
		}
	}
}

func TestWordDoesNotGuessWildly(t *testing.T) {
	verbs := []string{"submit", "status", "watch", "cancel", "export", "translate", "tokenize", "evaluate", "history"}
	for _, got := range []string{"frobnicate", "deploy", "install", "start", "destroy", "rotate"} {
		if near := Word(got, verbs); near != "" {
			t.Errorf("%q: nearest is %q, want none", got, near)
		}
	}
}

// TestDistanceIsAMetric counts edits, on words where they can be counted by hand, in both directions.
func TestDistanceIsAMetric(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"abcd", "badc", 2}, {"ca", "abc", 3}} {
		if x, y := distance(c.a, c.b, 99), distance(c.b, c.a, 99); x != c.want || y != c.want {
			t.Errorf("%q to %q: %d and back %d, want %d", c.a, c.b, x, y, c.want)
		}
		if x := distance(c.a, c.b, 2); x != min(c.want, 2) {
			t.Errorf("%q to %q, bound 2: %d", c.a, c.b, x)
		}
	}
}
