package words

import "testing"

func TestSeconds(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0", 1e-16: "0", 2.5e-5: "25us", 0.0123456: "12.3ms", 1.5: "1.5s", 125.4: "2m5s",
		9.994e-4: "999us", 9.996e-4: "1ms", 0.9994: "999ms", 0.9996: "1s", 99.96: "100s",
	} {
		if got := Seconds(seconds); got != want {
			t.Errorf("%v s: %s, want %s", seconds, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		n          int
		noun, want string
	}{{1, "stage", "1 stage"}, {2, "stage", "2 stages"}, {0, "micro-batch", "0 micro-batches"}} {
		if got := Count(c.n, c.noun); got != c.want {
			t.Errorf("%d %s: %s, want %s", c.n, c.noun, got, c.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0", 999: "999", 1500: "1.5 K", 999_960: "1 M", 124_439_808: "124.4 M", 241.6e9: "241.6 B", 1.5e12: "1.5 T", 2e18: "2e+06 T",
	} {
		if got := Number(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
}

func TestPercent(t *testing.T) {
	for part, want := range map[float64]string{0: "0%", 0.00123: "0.12%", 0.031: "3.1%", 0.994: "99%", 0.996: "100%", 1.9: "190%", 191.5: "19150%"} {
		if got := Percent(part); got != want {
			t.Errorf("%v: %s, want %s", part, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1500: "1.5 KB", 999_999: "1 MB", 38_297_856: "38.3 MB", 12_345_678_901: "12.3 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}
