#!/bin/sh
# Calibrates, fits, judges and exports a 2-bit KV cache; ends with exit code 1 when the gate fails, and exports nothing
# then. Settings come from the environment: docs/ci.md lists them. The four commands must be in PATH.
set -eu
: "${MODEL:?MODEL is a checkpoint directory or org/name}" "${PROMPTS:?PROMPTS is a file of calibration prompts}"
: "${TEXT:?TEXT is a held-out text to score}"
output=${OUTPUT:-oscar-ci}
format=${FORMAT:-sglang}

mkdir -p "$output"
# Statistics of an earlier run are used again; a CI cache may keep the file while checkpoint and prompts do not change.
[ -e "$output/statistics.safetensors" ] ||
  oscar-collect --model "$MODEL" --prompts "$PROMPTS" --tokens "${TOKENS:-30000}" -o "$output/statistics.safetensors" --resume
oscar-fit "$output/statistics.safetensors" -o "$output/bundle" --for "$format" --overwrite
oscar-verify --model "$MODEL" --bundle "$output/bundle" --as "$format" --text "$TEXT" --context "${CONTEXT:-2048}" \
  --max-sequences "${SEQUENCES:-0}" --max-kl "${MAX_KL:-0.05}" --overwrite --report "$output/report.json" \
  --html "$output/report.html" --markdown "$output/summary.md" --junit "$output/gates.xml"
oscar-export "$output/bundle" --format "$format" --report "$output/report.json" --model "$MODEL" -o "$output/serving" \
  --overwrite
