#!/usr/bin/env bash
# What oscar-verify takes with the length of a sequence, on random weights with the geometry of Qwen3-8B: seconds, GPU and host memory
# for one sequence of each length, whose last tokens are decoded too, and for tasks of the longest; and a fit of both to the length.
#
#   tests/bench/long_context.sh WORK [BIN]
#
# WORK: folder for the checkpoint (16 GB, made once; that of calibration_times.sh serves), statistics, bundles and logs; kept. BIN:
# folder of the executables (default build/bin). From the environment: LENGTHS, in the order in which they run (default "8192 131072
# 65536 32768 16384 4096"; none: no such run), LAST tokens of each that are decoded (default 64), METHODS (default naive2), PROMPTS of
# the task niah (default 0: none) of TASK_LENGTH tokens (default: the longest length), LIMIT in seconds for each run (default 3600),
# DEVICE (default cuda), GEOMETRY (default 8b), PYTHON (default python3, with torch and safetensors). The bundles of oscar and waterfill
# are evaluated beside METHODS. The text is random token ids. Results stand in WORK/contexts.jsonl after each run; with KEEP=1 they are added
# to those of earlier calls.
set -eu
[ $# -ge 1 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" && work=$(cd "$1" && pwd)
bin=$(cd "${2:-$root/build/bin}" && pwd)
python=${PYTHON:-python3} device=${DEVICE:-cuda} model=$work/model long=$work/model-long results=$work/contexts.jsonl
lengths=${LENGTHS-8192 131072 65536 32768 16384 4096}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true
echo "$(nproc) cores, lengths $lengths"

[ -d "$model" ] || "$python" "$root/tests/bench/make_random_checkpoint.py" "$model" --geometry "${GEOMETRY:-8b}"
# The same weights as a model of longer sequences.
rm -rf "$long" && mkdir "$long"
ln -s "$model"/*.safetensors "$model"/*.index.json "$model"/tokenizer* "$long/"
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 262144/' "$model/config.json" >"$long/config.json"
cat "$model"/*.safetensors >/dev/null  # into the page cache

statistics=$work/long-statistics.safetensors
if [ ! -f "$statistics" ]; then
  "$bin/oscar-collect" --model "$long" --prompts "$root/sample_data/prompts.jsonl" --tokens 20000 --device "$device" -o "$statistics" -q
  for method in oscar waterfill; do
    "$bin/oscar-fit" "$statistics" --method $method --device "$device" -o "$work/long-$method" --overwrite -q >/dev/null
  done
fi
longest=$(echo "$lengths ${TASK_LENGTH:-1}" | tr ' ' '\n' | sort -n | tail -n 1)
task_length=${TASK_LENGTH:-$longest}
"$python" -c 'import json, random, sys; r = random.Random(1)
print(json.dumps({"input_ids": [r.randrange(1000) for _ in range(int(sys.argv[1]))]}))' "$longest" >"$work/ids.jsonl"

# run NAME option...: measured, its messages in a log; a run that fails or ends at the limit is told and left behind.
run() {
  local name=$1 code=0
  shift
  timeout "${LIMIT:-3600}" "$python" "$root/tests/bench/measured_run.py" "$results" "$name" "$bin/oscar-verify" --no-gate --model "$long" \
    --bundle "$work/long-oscar" --bundle "$work/long-waterfill" --methods "${METHODS:-naive2}" --device "$device" --tokens 0 \
    --layer-sequences 1 --max-sequences 1 --report "$work/$name.json" --overwrite "$@" -v --no-progress \
    >"$work/$name.out" 2>"$work/$name.err" || code=$?
  echo "== $name: exit code $code, $(tail -n 1 "$results")"
  grep -E "were checked in|on the CPU, because" "$work/$name.err" || true
  sed -n '/where the time went/,$p' "$work/$name.err"
  grep -E "^(method|naive2|long-|pass |FAIL)" "$work/$name.out" | cut -c 1-200 || true
  [ $code -le 1 ] || tail -n 3 "$work/$name.err"
}

[ "${KEEP:-0}" = 1 ] || rm -f "$results"
touch "$results"
for length in $lengths; do
  run "context-$length" --text "$work/ids.jsonl" --context "$length" --path both --decode-last "${LAST:-64}"
done
if [ "${PROMPTS:-0}" -gt 0 ]; then
  run "niah-$task_length" --text "$root/sample_data/heldout.txt" --context 2048 --tasks niah --task-lengths "$task_length" \
    --task-prompts "$PROMPTS"
fi
"$python" - "$results" <<'PY'
import json, sys
import torch
runs = [run for run in map(json.loads, open(sys.argv[1])) if run["code"] in (0, 1)]
gib = lambda bytes: "-" if bytes is None else f"{bytes / 2**30:.1f}"
print("| run | s | host GiB | GPU GiB |\n|---|---:|---:|---:|")
for run in runs:
    print(f"| {run['name']} | {run['seconds']:.1f} | {gib(run['host_anonymous'])} | {gib(run['gpu'])} |")
points = [(int(run["name"].split("-")[1]) / 1024, run) for run in runs if run["name"].startswith("context-")]
if len(points) >= 3:
    lengths = torch.tensor([length for length, _ in points], dtype=torch.float64)
    powers = torch.stack([lengths**0, lengths, lengths**2], 1)
    fit = lambda columns, y: torch.linalg.lstsq(columns, torch.tensor(y, dtype=torch.float64).unsqueeze(1)).solution.flatten().tolist()
    a, b, c = fit(powers, [run["seconds"] for _, run in points])
    print(f"seconds = {a:.2f} + {b:.4f} K + {c:.6f} K^2, K = length / 1024")
    if all(run["gpu"] is not None for _, run in points):
        a, b = fit(powers[:, :2], [run["gpu"] / 2**30 for _, run in points])
        print(f"GPU GiB = {a:.2f} + {b:.4f} K")
PY
