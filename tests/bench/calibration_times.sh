#!/usr/bin/env bash
# Where the time of oscar-collect and of oscar-verify goes, part by part, on a checkpoint of random weights with the geometry of
# Qwen3-8B: both commands with their tables of -v, what the check of each method's pages took, and the decode path of rows that
# kernels code and of rows that the CPU coded in earlier versions.
#
#   tests/bench/calibration_times.sh WORK BIN [PART...]
#
# WORK: folder for the checkpoint (16 GB, made once), statistics, bundles and logs. BIN: folder of the executables. PART: collect,
# long (collect of 120,000 tokens in sequences of 4,000), whole (collect of one sequence of WHOLE tokens, default 131072), fit, verify,
# decode; without any, all of them in this order. fit needs collect; verify and decode need fit. DEVICE (default cuda), PYTHON (default
# python3, with torch and safetensors), TOKENS (default 30000), GEOMETRY (default 8b), and of the decode path CONTEXT (default 400),
# SEQUENCES (2) and ROWS (naive2) come from the environment.
set -u
[ $# -ge 2 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" && work=$(cd "$1" && pwd) && bin=$(cd "$2" && pwd) || exit 2
shift 2
[ $# -gt 0 ] || set -- collect long whole fit verify decode
device=${DEVICE:-cuda} python=${PYTHON:-python3} model=$work/model
. "$root/tests/bench/timed.sh"
prepare --geometry "${GEOMETRY:-8b}"

# The lines of some layers, with tokens per second: the first ones start up what all others use.
layers() { grep -hE '^(layer  |time )' "$1.err" "$1.out" | sed -n '1,4p;34,37p'; }

collect() {  # NAME STATISTICS PROMPTS TOKENS option...
  local name=$1 out=$2 prompts=$3 tokens=$4
  shift 4
  timed "$name" "$bin/oscar-collect" -v --model "$model" --prompts "$prompts" --tokens "$tokens" --device "$device" \
    -o "$work/$out.safetensors" --overwrite "$@"
}

long_prompts() {
  "$python" -c 'import json, random; r = random.Random(1)
for _ in range(30): print(json.dumps({"input_ids": [r.randrange(1000) for _ in range(4000)]}))' >"$work/long.jsonl"
}

# The same weights as a model that was trained for WHOLE tokens.
whole() {
  local tokens=${WHOLE:-131072}
  rm -rf "$work/model-whole" && mkdir "$work/model-whole"
  ln -s "$model"/*.safetensors "$model"/*.index.json "$model"/tokenizer* "$work/model-whole/"
  sed "s/\"max_position_embeddings\": [0-9]*/\"max_position_embeddings\": $tokens/" "$model/config.json" >"$work/model-whole/config.json"
  "$python" -c 'import json, random, sys; r = random.Random(1)
print(json.dumps({"input_ids": [r.randrange(1000) for _ in range(int(sys.argv[1]))]}))' "$tokens" >"$work/whole.jsonl"
  model=$work/model-whole collect collect-whole whole "$work/whole.jsonl" "$tokens" --context "$tokens"
}

fit() {  # NAME option...
  local name=$1
  shift
  timed "fit-$name" "$bin/oscar-fit" "$work/statistics.safetensors" "$@" --device "$device" -o "$work/$name" --overwrite
}

for part in "$@"; do
  case $part in
    collect)
      collect collect statistics "$root/sample_data/prompts.jsonl" "${TOKENS:-30000}"
      layers "$work/collect"
      ;;
    long)
      long_prompts
      collect collect-long long "$work/long.jsonl" 120000
      layers "$work/collect-long"
      ;;
    whole)
      whole
      layers "$work/collect-whole"
      ;;
    fit)
      fit fitted-oscar --method oscar
      fit fitted-waterfill --method waterfill
      fit centered-oscar --method oscar --scope head --center rope
      ;;
    verify)
      timed verify "$bin/oscar-verify" --no-gate --model "$model" --bundle "$work/fitted-oscar" --bundle "$work/fitted-waterfill" \
        --text "$root/sample_data/heldout.txt" --methods bf16,naive2,hadamard2,kivi2-g128,turboquant2.5 \
        --max-sequences 2 --layer-sequences 1 --device "$device" --report "$work/verify.json" --overwrite
      ;;
    decode)
      timed decode "$bin/oscar-verify" --no-gate --model "$model" --bundle "$work/fitted-oscar" --bundle "$work/centered-oscar" \
        --text "$root/sample_data/heldout.txt" --methods "${ROWS:-naive2}" \
        --path decode --context "${CONTEXT:-400}" --tokens 0 --max-sequences "${SEQUENCES:-2}" --windows 16,64 --layer-sequences 1 \
        --device "$device" --report "$work/decode.json" --overwrite
      ;;
    *)
      echo "part '$part' is not known; expected collect, long, whole, fit, verify or decode" >&2
      exit 2
      ;;
  esac
done
