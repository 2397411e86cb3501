//go:build !linux

package pace

import "time"

// Tighten does nothing on this system.
func Tighten() error { return nil }

func sleep(d time.Duration) { time.Sleep(d) }
