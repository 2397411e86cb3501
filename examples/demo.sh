#!/usr/bin/env bash
# What `make demo` runs: a daemon of its own trains a small GPT on the source of Go's standard library, at byte level, for
# DEMO_SECONDS (100 by default). Before it starts, the daemon chooses micro-batches and schedule by measuring, which takes
# some seconds more. It shows what was chosen and why, the loss on held-out files before and after, a sample, and where the model lies.
# It needs nothing but bin/ and the Go toolchain, leaves nothing but build/demo, and fails unless the loss ends below DEMO_LOSS
# nats per byte (2.5 by default, which takes a minute on two cores).
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${BIN:-$PWD/bin}
seconds=${DEMO_SECONDS:-100}
bound=${DEMO_LOSS:-2.5}
job=go-source # the name in the job file
out=$PWD/build/demo
log=$out/avgpiped.log
name=demo
. examples/daemon.sh

say() { printf '\n%s\n' "$*"; }

[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "DEMO_SECONDS is '$seconds'; give whole seconds, such as 100"
[[ $bound =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "DEMO_LOSS is '$bound'; give a number, such as 2.5"
rm -rf "$out"
mkdir -p "$out"
GOROOT=${GOROOT:-$(go env GOROOT)}
export GOROOT

say "Starting avgpiped --dev (log: $log)"
start

say "Training on $GOROOT/src for $seconds s: examples/go-source.yaml"
timeout --foreground "$((seconds + 180))" "$bin/avgpipectl" submit examples/go-source.yaml --watch --set "train.max_time=${seconds}s" \
	--set micro_batches=auto --set schedule=auto --set tuning_share=0 </dev/null ||
	fail "the job did not finish (exit code $?)"

say 'How it was laid over the devices, and why:'
"$bin/avgpipectl" explain "$job" || fail 'the job could not be explained'

before=$(field "$job" initial_eval_loss)
after=$(field "$job" eval_loss)
[ -n "$before" ] && [ -n "$after" ] || fail "the status has no loss (before: '$before', after: '$after')"
say "Loss on held-out files, nats per byte: $(printf '%.3f before, %.3f after' "$before" "$after")"

timeout --foreground 60 "$bin/avgpipectl" export "$job" "$out/model" >/dev/null || fail 'the model could not be exported'
say 'A sample of what the model writes, from "func " on:'
printf 'func '
timeout --foreground 60 "$bin/avgpipectl" generate "$job" --prompt 'func ' --tokens 300 || fail 'the model could not generate text'

awk -v after="$after" -v bound="$bound" 'BEGIN { exit !(after < bound) }' ||
	fail "the loss is $after nats per byte after $seconds s, $before before; it must end below $bound"
say "The model, in Hugging Face form: $out/model"
ls -l "$out/model"
