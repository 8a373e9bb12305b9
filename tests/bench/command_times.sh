#!/usr/bin/env bash
# Times oscar-collect (--no-pack: each prompt is a sequence), oscar-fit and oscar-verify on a checkpoint of random weights with the
# geometry of Qwen3-8B, and prints the table of -v of each run; with several folders of executables, all of them in turn, and whether they wrote the same.
#
#   tests/bench/command_times.sh WORK BIN [BIN...]
#
# WORK: folder for the checkpoint (16 GB, made once), statistics, bundles and logs. BIN: a folder that holds the executables, such as
# build/bin. DEVICE (default cuda), PYTHON (default python3, with torch and safetensors) and TOKENS (default 30000) come from the
# environment.
set -u
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" && work=$(cd "$1" && pwd) || exit 2
shift
device=${DEVICE:-cuda} tokens=${TOKENS:-30000} model=$work/model
. "$root/tests/bench/timed.sh"
prepare

number=0
for bin in "$@"; do
  number=$((number + 1)) to=$work/run$((number))
  rm -rf "$to" && mkdir "$to"
  timed "collect-$number" "$bin/oscar-collect" --model "$model" --prompts "$root/sample_data/prompts.jsonl" --tokens "$tokens" \
    --no-pack --device "$device" -o "$to/statistics.safetensors"
  for method in oscar waterfill; do
    timed "fit-$method-$number" "$bin/oscar-fit" "$to/statistics.safetensors" --method $method --device "$device" -o "$to/fitted-$method"
  done
  timed "verify-$number" "$bin/oscar-verify" --no-gate --model "$model" --bundle "$to/fitted-oscar" --bundle "$to/fitted-waterfill" \
    --text "$root/sample_data/heldout.txt" --methods bf16,naive2,hadamard2,kivi2-g128,turboquant2.5 \
    --max-sequences 2 --layer-sequences 1 --device "$device" --report "$to/report.json"
  [ $number -eq 1 ] && continue
  cmp "$work/run1/statistics.safetensors" "$to/statistics.safetensors" && echo "same statistics"
  for method in oscar waterfill; do diff -r "$work/run1/fitted-$method" "$to/fitted-$method" && echo "same bundle: $method"; done
done
