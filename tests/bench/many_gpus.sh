#!/usr/bin/env bash
# oscar-collect and oscar-verify on one GPU and on several of one machine, on a checkpoint of random weights with the geometry of
# Qwen3-8B: wall times, the table of -v of each run, and how many times as fast the ranks are.
#
#   tests/bench/many_gpus.sh WORK BIN [RANKS]
#
# WORK: folder for the checkpoint (16 GB, made once; that of calibration_times.sh serves), statistics, a bundle and logs. BIN: folder of
# the executables. RANKS: GPUs of the second run of each command (default 2). From the environment: TOKENS of oscar-collect, in
# sequences of LENGTH (default 120000 and 4000), SEQUENCES of oscar-verify (default 8), of CONTEXT tokens (default 2048), DEVICE (default cuda),
# GEOMETRY (default 8b), PYTHON (default python3, with torch and safetensors). Each rank gets its share of the cores as threads.
set -u
[ $# -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" && work=$(cd "$1" && pwd) && bin=$(cd "$2" && pwd) || exit 2
ranks=${3:-2} device=${DEVICE:-cuda} python=${PYTHON:-python3} model=$work/model
tokens=${TOKENS:-120000} length=${LENGTH:-4000}
. "$root/tests/bench/timed.sh"
prepare --geometry "${GEOMETRY:-8b}"

share=$(($(nproc) / ranks))
spread() { OMP_NUM_THREADS=$((share > 0 ? share : 1)) "$python" -m torch.distributed.run --nproc-per-node "$ranks" --no-python "$@"; }

# both NAME command...: alone and as ranks; its wall times are in NAME-1.err and NAME-N.err.
both() {
  local name=$1
  shift
  timed "$name-1" "$@" --overwrite
  timed "$name-$ranks" spread "$@" --overwrite
  awk '/^  wall time/ { seconds[FILENAME] = $3; last = FILENAME; if (!first) first = FILENAME }
       END { if (seconds[last] > 0) printf "== %s: %.2f times as fast\n", name, seconds[first] / seconds[last] }' \
    name="$name" "$work/$name-1.err" "$work/$name-$ranks.err"
}

"$python" -c 'import json, random, sys
r, tokens, length = random.Random(1), int(sys.argv[1]), int(sys.argv[2])
for _ in range(tokens // length): print(json.dumps({"input_ids": [r.randrange(1000) for _ in range(length)]}))' "$tokens" "$length" \
  >"$work/ids.jsonl"
both ranks-collect "$bin/oscar-collect" --model "$model" --prompts "$work/ids.jsonl" --tokens "$tokens" --device "$device" \
  -o "$work/ranks-statistics.safetensors"
"$bin/oscar-fit" "$work/ranks-statistics.safetensors" --method oscar --device "$device" -o "$work/ranks-bundle" --overwrite -q >/dev/null || exit
both ranks-verify "$bin/oscar-verify" --no-gate --model "$model" --bundle "$work/ranks-bundle" --text "$root/sample_data/heldout.txt" \
  --methods bf16,naive2,oscar --context "${CONTEXT:-2048}" --tokens 0 --max-sequences "${SEQUENCES:-8}" --layer-sequences 1 \
  --device "$device" --report "$work/ranks-verify.json"
