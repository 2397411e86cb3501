#!/usr/bin/env bash
# What `make examples` runs: trains every job of targets.tsv, or those named as arguments, on a daemon of its own, one after
# the other, and holds each against its targets. It prints a line for each target and fails when one is missed. Needs bin/
# and the data of `make examples-data`; leaves build/examples: the log and the status of each job.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${BIN:-$PWD/bin}
out=$PWD/build/examples
log=$out/avgpiped.log
name=examples
. examples/daemon.sh

targets=examples/targets.tsv
mapfile -t jobs < <(tail -n +2 "$targets" | cut -f 1 | uniq)
if [ $# -gt 0 ]; then jobs=("$@"); fi
rm -rf "$out"
mkdir -p "$out"
for job in "${jobs[@]}"; do
	cut -f 1 "$targets" | grep -qx "$job" || fail "$job has no row in $targets; there are: $(tail -n +2 "$targets" | cut -f 1 | uniq | paste -sd ' ')"
done
[ -d examples/data/brown ] && [ -d examples/data/gettext ] || fail 'examples/data is missing or incomplete; run: make examples-data'
[ -e examples/data/brown/train.tokens ] || for part in train validation; do # the same text once more, as a file of tokens
	"$bin/avgpipectl" tokenize --tokenizer examples/data/brown/bpe.json "examples/data/brown/$part.txt" --out "examples/data/brown/$part.tokens"
done

start
missed=0
for job in "${jobs[@]}"; do
	printf 'training %s\n' "$job" >&2
	"$bin/avgpipectl" submit "examples/$job.yaml" --watch >"$out/$job.log" 2>&1 </dev/null ||
		fail "$job did not finish (exit code $?): $(tail -n 1 "$out/$job.log")"
	"$bin/avgpipectl" status "$job" -o json >"$out/$job.status.json"
	if grep -q "^$job	bleu" "$targets"; then
		"$bin/avgpipectl" evaluate "$job" --data examples/data/gettext/validation.jsonl -o json >"$out/$job.evaluation.json"
	fi
	while IFS=$'\t' read -r _ measure bound target; do
		found=$(cat "$out/$job".*json | grep -o "\"$measure\": *[-+0-9.eE]*" | head -n 1 | sed 's/.*: *//' || true)
		awk -v found="$found" -v bound="$bound" -v target="$target" \
			'BEGIN { exit !(found != "" && (bound == "at most" ? found <= target : found >= target)) }' && verdict=ok || verdict=MISSED missed=1
		printf '%-12s %-12s %-10.6s %s %s: %s\n' "$job" "$measure" "${found:--}" "$bound" "$target" "$verdict"
	done < <(grep "^$job	" "$targets")
done
exit "$missed"
