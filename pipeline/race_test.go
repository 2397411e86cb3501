//go:build race

package pipeline

// The race detector makes tests ten times as slow. It looks at who touches what when, which each of these does in another way; which bits come out, all are held against without it.
func init() {
	averagings = []string{
		"predicted", "new", "old within 0.0012", "diloco", "allreduce", "pipesgd after 3", "sapipe 3 local_prev_sync outer_adaptive",
	}
}
