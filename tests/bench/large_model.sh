#!/usr/bin/env bash
# Shows that a model of any size goes through collect, fit and verify with one layer's weights resident: random weights with the
# layers of GLM-4.7 (5120 wide, 160 experts, FP8 by channel), as many layers as the disk holds. Prints what --dry-run says of all 92
# layers from the index alone, then seconds, tokens per second, host and GPU memory of each command, and from two lengths of the
# model the time of 92 layers.
#
#   tests/bench/large_model.sh WORK [BIN]
#
# WORK: folder for the checkpoint (about 3.2 + 3.9 LAYERS GB), statistics and logs; kept. BIN: folder of the executables (default
# build/bin). From the environment: LAYERS (default 6, at least 3), DEVICE (default cuda), TOKENS (default 30000), GEOMETRY (full, or
# tiny for a try on a CPU), PYTHON (default python3, with torch and numpy), CONTEXT (default 2048) and SEQUENCES (default 2) of verify.
set -eu
[ $# -ge 1 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" && work=$(cd "$1" && pwd)
bin=$(cd "${2:-$root/build/bin}" && pwd)
python=${PYTHON:-python3} layers=${LAYERS:-6} device=${DEVICE:-cuda} tokens=${TOKENS:-30000}
[ "$layers" -ge 3 ] || { echo "LAYERS is $layers, expected at least 3" >&2; exit 2; }
model=$work/model results=$work/results.jsonl
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true
echo "$(nproc) cores, $layers layers, $tokens tokens, $device"

if [ ! -f "$model/model.safetensors.index.json" ]; then
  rm -rf "$model" "$model-index"
  SECONDS=0
  "$python" "$root/tests/bench/make_glm_checkpoint.py" "$model" --layers "$layers" --geometry "${GEOMETRY:-full}" --device "$device"
  echo "made in $SECONDS s"
fi
# The same shards read as a model of two layers: what comes behind the last layer is left alone.
rm -rf "$model-short" && mkdir "$model-short"
ln -s "$model"/*.safetensors "$model"/*.index.json "$model"/tokenizer*.json "$model-short/"
sed 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 2/' "$model/config.json" >"$model-short/config.json"

# Clean pages leave the page cache, so that the next run reads the disk.
forget() {
  sync
  "$python" - "$model"/*.safetensors <<'PY'
import os, sys
for name in sys.argv[1:]:
    file = os.open(name, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
PY
}

# run NAME command...: measured, its messages in a log.
run() {
  local name=$1
  shift
  "$python" "$root/tests/bench/measured_run.py" "$results" "$name" "$@" -v --no-progress >"$work/$name.out" 2>"$work/$name.err" && return
  echo "$name failed:" >&2
  tail -n 5 "$work/$name.err" >&2
  exit 1
}

collect() {  # NAME MODEL
  run "$1" "$bin/oscar-collect" --model "$2" --prompts "$root/sample_data/prompts.jsonl" --tokens "$tokens" \
    --device "$device" -o "$work/$1.safetensors" --overwrite
}

verify() {  # NAME MODEL
  run "$1" "$bin/oscar-verify" --no-gate --model "$2" --bundle "$work/bundle-${1#verify-}" --text "$root/sample_data/heldout.txt" --stream-layers \
    --context "${CONTEXT:-2048}" --max-sequences "${SEQUENCES:-2}" --methods bf16,naive2,oscar --device "$device" \
    --report "$work/$1.json" --overwrite
}

rm -f "$results"
echo "== --dry-run of 92 layers, from config.json and the index alone"
"$bin/oscar-collect" --model "$model-index" --prompts "$root/sample_data/prompts.jsonl" --tokens "$tokens" \
  --device "$device" -o "$work/none.safetensors" --dry-run -q
echo "== --dry-run of what is run here"
"$bin/oscar-collect" --model "$model" --prompts "$root/sample_data/prompts.jsonl" --tokens "$tokens" \
  --device "$device" -o "$work/none.safetensors" --dry-run -q
forget
collect collect-cold "$model"
collect collect-whole "$model"
collect collect-short "$model-short"
for length in whole short; do
  run "fit-$length" "$bin/oscar-fit" "$work/collect-$length.safetensors" --method oscar --device "$device" -o "$work/bundle-$length" --overwrite
done
verify verify-whole "$model"
verify verify-short "$model-short"
"$python" - "$results" "$layers" "$tokens" "$((${CONTEXT:-2048} * ${SEQUENCES:-2}))" <<'PY'
import json, sys
runs = {run["name"]: run for run in map(json.loads, open(sys.argv[1]))}
layers, tokens, scored = map(int, sys.argv[2:])
gib = lambda bytes: "-" if bytes is None else f"{bytes / 2**30:.1f}"
print("== measured\n| run | s | tokens/s | host GiB | with mapped files | GPU GiB |\n|---|---|---|---|---|---|")
for name, run in runs.items():
    count = tokens if name.startswith("collect") else scored if name.startswith("verify") else 0
    rate = f"{count / run['seconds']:.0f}" if count else ""
    print(f"| {name} | {run['seconds']:.1f} | {rate} | {gib(run['host_anonymous'])} | {gib(run['host_mapped'])} | {gib(run['gpu'])} |")
print("== 92 layers, at the time that layers with experts took here (three of the 92 are dense, and quicker)")
for command in ("collect", "fit", "verify"):
    whole, short = runs[command + "-whole"]["seconds"], runs[command + "-short"]["seconds"]
    each = max(whole - short, 0.0) / (layers - 2)
    print(f"{command}: {each:.2f} s for each layer, {short + 90 * each:.0f} s in all, files in the page cache")
cold = max(runs["collect-cold"]["seconds"] - runs["collect-whole"]["seconds"], 0.0) / layers
print(f"collect from this disk: {cold:.2f} s more for each layer, {92 * cold:.0f} s in all")
PY
