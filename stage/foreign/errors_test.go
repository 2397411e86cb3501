package foreign_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/foreign"
)

// TestAnErrorOfAProgramCannotChangeATerminal: what it holds beside text is written out.
func TestAnErrorOfAProgramCannotChangeATerminal(t *testing.T) {
	err := &foreign.ProgramError{Type: "ValueError", Message: "böse\n\x00\x1b[31mred\u2028", File: "a.py", Line: 3}
	if want := `a.py:3: ValueError: böse \u0000\u001b[31mred\u2028`; err.Error() != want {
		t.Errorf("%q, expected %q", err, want)
	}
}
