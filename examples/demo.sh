#!/usr/bin/env bash
# What `make demo` runs: a daemon of its own trains a small GPT on the source of Go's standard library, at byte level, for
# DEMO_SECONDS (100 by default). It shows the loss on held-out files before and after, a sample, and where the model lies.
# It needs nothing but bin/ and the Go toolchain, leaves nothing but build/demo, and fails when the loss did not fall.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${BIN:-$PWD/bin}
seconds=${DEMO_SECONDS:-100}
job=go-source # the name in the job file
out=$PWD/build/demo
log=$out/avgpiped.log
daemon=

say() { printf '\n%s\n' "$*"; }

fail() {
	printf 'demo: %s\n' "$*" >&2
	if [ -s "$log" ]; then
		printf 'demo: the end of the daemon'\''s log, %s:\n' "$log" >&2
		tail -n 20 "$log" >&2
	fi
	exit 1
}

# stop ends the daemon in order, which ends its workers; after 30 seconds, by force.
stop() {
	[ -n "$daemon" ] || return 0
	kill -TERM "$daemon" 2>/dev/null || true
	for _ in $(seq 150); do
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.2
	done
	kill -KILL "$daemon" 2>/dev/null && printf 'demo: the daemon did not stop in 30 s and was killed\n' >&2
	wait "$daemon" 2>/dev/null || true
	daemon=
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start runs a daemon with its state in a temporary directory and sets AVGPIPE_SOCKET to the socket that it prints.
start() {
	"$bin/avgpiped" --dev >"$log" 2>&1 </dev/null &
	daemon=$!
	for _ in $(seq 150); do
		AVGPIPE_SOCKET=$(sed -n 's/^ *export AVGPIPE_SOCKET=//p' "$log")
		export AVGPIPE_SOCKET
		if [ -S "$AVGPIPE_SOCKET" ] && "$bin/avgpipectl" version >/dev/null 2>&1; then
			return 0
		fi
		kill -0 "$daemon" 2>/dev/null || fail 'avgpiped --dev ended at once'
		sleep 0.2
	done
	fail 'avgpiped --dev did not answer within 30 s'
}

# field prints the number under a key of the job's status, or nothing when it is null.
field() {
	"$bin/avgpipectl" status "$job" -o json | grep -o "\"$1\": *[-+0-9.eE]*" | head -n 1 | sed 's/.*: *//'
}

[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "DEMO_SECONDS is '$seconds'; give whole seconds, such as 100"
rm -rf "$out"
mkdir -p "$out"
GOROOT=${GOROOT:-$(go env GOROOT)}
export GOROOT

say "Starting avgpiped --dev (log: $log)"
start

say "Training on $GOROOT/src for $seconds s: examples/go-source.yaml"
timeout --foreground "$((seconds + 60))" "$bin/avgpipectl" submit examples/go-source.yaml --watch --set "train.max_time=${seconds}s" </dev/null ||
	fail "the job did not finish (exit code $?)"

before=$(field initial_eval_loss)
after=$(field eval_loss)
[ -n "$before" ] && [ -n "$after" ] || fail "the status has no loss (before: '$before', after: '$after')"
say "Loss on held-out files, nats per byte: $(printf '%.3f before, %.3f after' "$before" "$after")"

timeout --foreground 60 "$bin/avgpipectl" export "$job" "$out/model" >/dev/null || fail 'the model could not be exported'
say 'A sample of what the model writes, from "func " on:'
printf 'func '
timeout --foreground 60 "$bin/avgpipectl" generate "$job" --prompt 'func ' --tokens 300 || fail 'the model could not generate text'

awk -v before="$before" -v after="$after" 'BEGIN { exit !(after < before) }' ||
	fail "the loss did not fall: $before before, $after after"
say "The model, in Hugging Face form: $out/model"
ls -l "$out/model"
