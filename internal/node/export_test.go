package node

import "path/filepath"

// WorkerPIDs lists the living workers of a job's directory.
func WorkerPIDs(dir string) ([]int, error) {
	found, err := findWorkers(filepath.Dir(dir))
	var pids []int
	for _, p := range found[dir] {
		pids = append(pids, p.pid)
	}
	return pids, err
}
