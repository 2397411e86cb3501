#!/usr/bin/env bash
# Runs a short form of every benchmark and holds each figure against the bar that the benchmark itself gives it. It ends with the figures
# that do not hold, and fails when there is one or when one could not be measured. `make bench-check` runs it with GO, TAGS, AVGPIPED and
# BENCHES, the names of those to run, separated by commas; empty: all.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
figures=$dir/all.jsonl
touch "$figures"
failed=
daemon="-avgpiped $AVGPIPED -goroot $("$GO" env GOROOT)"

# bench NAME FLAGS: builds and runs a benchmark. Its own table goes to the standard error.
bench() {
	case ",${BENCHES:-$1}," in
	*",$1,"*) ;;
	*) return ;;
	esac
	printf '\n== %s %s ==\n' "$1" "$2" >&2
	local program=$dir/${1//\//-}
	# shellcheck disable=SC2086 # flags are words
	if "$GO" build $TAGS -o "$program" "./bench/$1" && "$program" $2 >"$program.jsonl" && [ -s "$program.jsonl" ]; then
		cat "$program.jsonl" >>"$figures"
	else
		failed="$failed $1"
	fi
}

# The short ones first.
bench schedules "-figures $dir"
bench headline "-parts combine -figures $dir -models gpt"
bench overhead "-seconds 0.1 -repeats 3"
bench recompute "-rounds 3"
bench engine "-parts f32,bf16 -rounds 1 -own"
bench emulated "-batches 3"
bench recovery "-kills 3 $daemon"
bench scaling "-rounds 1 $daemon"
bench control "-nodes 20 -voters 3 -running 5 -queued 20 -done 20 -failed 10 -cancelled 5 -hours 1"
bench chaos "-trials 20 -avgpiped $AVGPIPED"
bench tuner "-parts accuracy -rounds 3"
bench foreign "-parts bridge -repeats 5"
# Hosts are network namespaces, which need root, and the peer is PyTorch.
if [ "$(id -u)" = 0 ] && /usr/bin/python3 -c 'import torch' 2>"$dir/torch"; then
	bench averaging/speed "-replicas 2 -links 0.1 -compute 0 -methods none,ddp,allreduce,elastic:tau=8,diloco:tau=16 -repeats 1 -avgpiped $AVGPIPED"
else
	echo 'averaging/speed is left out: it needs root and python3-torch' >&2
fi
bench averaging "-pipelines 2 -steps 512 -seeds 1 -rates 0.006 -rules default $daemon"

printf '\n%s figures, of which these do not hold:\n' "$(grep -c '"holds"' "$figures")"
grep '"holds":false' "$figures" || echo none
[ -z "$failed" ] || { echo "could not be measured:$failed"; exit 1; }
! grep -q '"holds":false' "$figures"
