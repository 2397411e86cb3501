package foreign

import "time"

// BoundAnswers bounds what a process that has started has for each answer from now on.
func BoundAnswers(p *Process, d time.Duration) { p.config.StartTimeout, p.config.LeastTimeout = d, d }
