package profile

import (
	"runtime"

	"github.com/prometheus/procfs"
)

// processors is the kind of processor that this program runs on, for the digest: its model where the host names it.
func processors() string {
	kind := runtime.GOOS + "/" + runtime.GOARCH
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if all, err := fs.CPUInfo(); err == nil && len(all) > 0 && all[0].ModelName != "" {
			kind += " " + all[0].ModelName
		}
	}
	return kind
}
