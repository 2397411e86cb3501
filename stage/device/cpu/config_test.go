package cpu

import (
	"runtime"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

func TestConfigIsValidated(t *testing.T) {
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{}, ""},
		{Config{Threads: 2, Cores: []int{0}}, ""},
		{Config{Threads: -1}, "-1 threads"},
		{Config{Cores: []int{-1}}, "core -1"},
		{Config{Cores: []int{maxCores}}, "core 1024"},
		{Config{Cores: []int{1, 1}}, "core 1 is named twice"},
	} {
		err := test.config.Validate()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: error is %v, want %q", test.config, err, test.want)
		}
	}
}

func TestAttachToACoreThatIsNotThereNamesThoseThatAre(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.NumCPU() >= maxCores {
		envtest.Impossible(t, "it needs Linux and a core that does not exist")
	}
	d, err := Open(Config{Cores: []int{maxCores - 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if err := d.Attach(); err == nil || !strings.Contains(err.Error(), "may use [") {
		t.Errorf("error is %v, want the cores this process may use", err)
	}
}
