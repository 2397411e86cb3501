//go:build !man

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// interruptGrace is how long a verb may take to end after a signal. One that reads a pipe which nobody writes to never hears of it.
const interruptGrace = 3 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // a second signal ends the program at once
		time.AfterFunc(interruptGrace, func() { os.Exit(exitInterrupted) })
	})
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
