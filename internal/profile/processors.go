package profile

import (
	"bytes"
	"os"
	"runtime"
)

// processors is the kind of processor that this program runs on, for the digest: its model where the host names it.
func processors() string {
	kind := runtime.GOOS + "/" + runtime.GOARCH
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return kind
	}
	if name := parseModel(data); name != "" {
		kind += " " + name
	}
	return kind
}

// parseModel reads the first model name of /proc/cpuinfo (proc_cpuinfo(5)); "" when there is none.
func parseModel(cpuinfo []byte) string {
	for line := range bytes.Lines(cpuinfo) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(key)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}
