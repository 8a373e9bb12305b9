#!/bin/sh
# Calibrates, fits, evaluates and exports a 2-bit KV cache; ends with exit code 1 when the gate fails, and exports nothing
# then. Settings come from the environment: docs/ci.md lists them. Arguments go to oscar-verify. With --key it prints
# what the statistics depend on, for the key of a CI cache, and does nothing else. The four commands must be in PATH.
set -eu
: "${MODEL:?MODEL is a checkpoint directory or org/name}" "${PROMPTS:?PROMPTS is a file of calibration prompts}"
output=${OUTPUT:-oscar-ci}
format=${FORMAT:-transformers}
tokens=${TOKENS:-30000}

# The folder of the checkpoint, as the commands find it.
checkpoint=$MODEL
if [ ! -d "$checkpoint" ]; then
  hub=${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}}
  model="$hub/models--$(printf %s "$MODEL" | sed 's#/#--#g')"
  checkpoint="$model/snapshots/$(cat "$model/refs/main")"
fi

# Of all bytes that the statistics depend on: the checkpoint is read once, at the speed of the disk.
key=$({
  oscar-collect --version
  printf '%s\n' "$tokens" "${COLLECT_OPTIONS:-}"
  sha256sum < "$PROMPTS"
  for file in "$checkpoint"/*.json "$checkpoint"/*.jinja "$checkpoint"/*.safetensors; do
    if [ -f "$file" ]; then basename "$file" && sha256sum < "$file"; fi
  done
} | sha256sum | cut -c 1-16)
if [ "${1:-}" = --key ]; then
  printf '%s\n' "$key"
  exit
fi
: "${TEXT:?TEXT is a held-out text to score}"

mkdir -p "$output"
# Nothing of an earlier run may be taken for a result of this one.
rm -rf "$output/serving" "$output/report.json" "$output/report.html" "$output/summary.md" "$output/gates.xml"
# Statistics of the same checkpoint, prompts and options are used again.
statistics=$output/statistics-$key.safetensors
# Unquoted on purpose: COLLECT_OPTIONS and FIT_OPTIONS are lists of options.
# shellcheck disable=SC2086
[ -e "$statistics" ] ||
  oscar-collect --model "$MODEL" --prompts "$PROMPTS" --tokens "$tokens" -o "$statistics" --resume ${COLLECT_OPTIONS:-}
# shellcheck disable=SC2086
oscar-fit "$statistics" -o "$output/bundle" --for "$format" --overwrite ${FIT_OPTIONS:-}
oscar-verify --model "$MODEL" --bundle "$output/bundle" --as "$format" --text "$TEXT" --context "${CONTEXT:-2048}" \
  --max-sequences "${SEQUENCES:-0}" --max-kl "${MAX_KL:-0.05}" ${MAX_PPL_RATIO:+--max-ppl-ratio "$MAX_PPL_RATIO"} \
  ${BASELINE:+--baseline "$BASELINE"} --overwrite --report "$output/report.json" --html "$output/report.html" \
  --markdown "$output/summary.md" --junit "$output/gates.xml" "$@"
oscar-export "$output/bundle" --format "$format" --report "$output/report.json" --model "$MODEL" -o "$output/serving"
