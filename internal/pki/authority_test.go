package pki_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/pki"
)

// TestNamesOfSubjects: letters and digits of any script, and a few marks, 64 of them at most.
func TestNamesOfSubjects(t *testing.T) {
	long := strings.Repeat("é", 64)
	for name, ok := range map[string]bool{
		"node-1.example_b@c": true, "δοκιμή٣": true, long: true, "Ⅷ": true,
		"": false, long + "e": false, "a b": false, "a/b": false, "a\x00": false, "a\xff": false, "e\u0301": false, "a\n": false,
	} {
		if err := (pki.Subject{Role: pki.RoleView, Name: name, UID: 1}).Validate(); (err == nil) != ok {
			t.Errorf("the name %q: %v, expected that it is allowed: %t", name, err, ok)
		}
	}
}
