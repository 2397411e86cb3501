package profile

import "testing"

func TestProcessorsAreToldApartByTheirModel(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nmodel\t\t: 17\nmodel name\t: Quick 9: 3 GHz\nflags\t: a\n\nmodel name\t: Other\n": "Quick 9: 3 GHz",
		"processor\t: 0\nBogoMIPS\t: 50.00\n": "",
	} {
		if got := parseModel([]byte(text)); got != want {
			t.Errorf("model %q of %q, want %q", got, text, want)
		}
	}
}
