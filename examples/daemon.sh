#!/usr/bin/env bash
# What scripts share that run a daemon of their own; they source it. They set `name`, for messages, `bin`, the directory of the
# programs, and `log`, the file of the daemon's log.
# shellcheck disable=SC2154
set -euo pipefail

daemon=

fail() {
	printf '%s: %s\n' "$name" "$*" >&2
	if [ -s "$log" ]; then
		printf '%s: the end of the daemon'\''s log, %s:\n' "$name" "$log" >&2
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
	kill -KILL "$daemon" 2>/dev/null && printf '%s: the daemon did not stop in 30 s and was killed\n' "$name" >&2
	wait "$daemon" 2>/dev/null || true
	daemon=
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start runs a daemon with its state in a temporary directory and sets AVGPIPE_SOCKET to the socket that it prints.
start() {
	: >"$log" # it is read before the daemon opens it
	"$bin/avgpiped" --dev >>"$log" 2>&1 </dev/null &
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

# field prints the number under key $2 of the status of job $1, or nothing when it is null.
field() {
	"$bin/avgpipectl" status "$1" -o json | grep -o "\"$2\": *[-+0-9.eE]*" | head -n 1 | sed 's/.*: *//'
}
