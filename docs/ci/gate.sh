#!/bin/sh
# Calibrates, fits, evaluates and exports a 2-bit KV cache; ends with exit code 1 when the gate fails, and exports nothing
# then. Settings come from the environment: docs/ci.md lists them. Arguments go to oscar-verify. With --key it prints
# what the statistics depend on, for the key of a CI cache, and does nothing else. The four commands must be in PATH.
set -eu
: "${MODEL:?MODEL is a checkpoint directory or org/name}" "${PROMPTS:?PROMPTS is a file of calibration prompts}"
output=${OUTPUT:-oscar-ci}
format=${FORMAT:-transformers}
tokens=${TOKENS:-30000}
allocate=${ALLOCATE:-measured}

# Ends with one of the exit codes of the commands: 1 is only for a failed gate.
fail() {
  printf 'error: %s\n' "$2" >&2
  exit "$1"
}

if [ "${1:-}" != --key ]; then
  : "${TEXT:?TEXT is a held-out text to score}"
  mkdir -p -- "$output" || fail 4 "OUTPUT '$output' cannot be made"
  if command -v flock > /dev/null; then
    exec 9> "$output/.lock" || fail 4 "OUTPUT '$output' cannot be written"
    flock -n 9 || fail 4 "another run uses the folder '$output'; wait for it or set another OUTPUT"
  fi
  # Nothing of an earlier run may be taken for a result of this one, whatever ends it; nor may what a killed run left.
  rm -rf -- "$output/serving" "$output/report.json" "$output/report.html" "$output/summary.md" "$output/gates.xml" \
    "$output/report.json.work" "$output/bundle.curves.work" || fail 4 "results of an earlier run in '$output' cannot be removed"
  # Told now, not after hours of calibration.
  case $allocate in measured | analytic) ;; *) fail 2 "ALLOCATE is '$allocate', expected measured or analytic" ;; esac
  [ -f "$TEXT" ] || fail 3 "TEXT '$TEXT' is not a file"
  [ -z "${BASELINE:-}" ] || [ -f "$BASELINE" ] || fail 3 "BASELINE '$BASELINE' is not a file"
fi

# The folder of the checkpoint, as the commands find it.
checkpoint=$MODEL
if [ ! -d "$checkpoint" ]; then
  case $MODEL in /* | .* | */*/*) fail 3 "MODEL '$MODEL' is not a directory that this job sees" ;; esac
  home=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
  hub=${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-$home/hub}}
  model="$hub/models--$(printf %s "$MODEL" | sed 's#/#--#g')"
  [ -f "$model/refs/main" ] ||
    fail 3 "MODEL '$MODEL' is neither a directory nor in the Hugging Face cache $hub; fetch it with: hf download $MODEL"
  checkpoint="$model/snapshots/$(cat "$model/refs/main")"
fi
[ -f "$PROMPTS" ] || fail 3 "PROMPTS '$PROMPTS' is not a file"
version=$(oscar-collect --version) || fail 4 "oscar-collect does not run; put the four commands in PATH"

# Of all bytes that the statistics depend on: the checkpoint is read once, at the speed of the disk.
key=$({
  printf '%s\n' "$version" "$tokens" "${COLLECT_OPTIONS:-}" "${PROMPTS##*.}"
  sha256sum < "$PROMPTS"
  for file in "$checkpoint"/*.json "$checkpoint"/*.jinja "$checkpoint"/additional_chat_templates/*.jinja \
    "$checkpoint"/*.safetensors; do
    if [ -f "$file" ]; then basename "$file" && sha256sum < "$file"; fi
  done
} | sha256sum | cut -c 1-16)
if [ "${1:-}" = --key ]; then
  printf '%s\n' "$key"
  exit
fi

# Statistics of the same checkpoint, prompts and options are used again.
statistics=$output/statistics-$key.safetensors
# Unquoted on purpose: COLLECT_OPTIONS and FIT_OPTIONS are lists of options.
# shellcheck disable=SC2086
[ -e "$statistics" ] ||
  oscar-collect --model "$MODEL" --prompts "$PROMPTS" --tokens "$tokens" -o "$statistics" --resume ${COLLECT_OPTIONS:-}
# Bits are allocated as by `oscar-fit --model`, which runs the model on the prompts; methods that allocate none need no run.
# shellcheck disable=SC2086
fit() { oscar-fit "$statistics" -o "$output/bundle" --for "$format" --overwrite "$@" ${FIT_OPTIONS:-}; }
if [ "$allocate" = measured ]; then fit --allocate auto --model "$MODEL" --text "$PROMPTS"; else fit; fi
oscar-verify --model "$MODEL" --bundle "$output/bundle" --as "$format" --text "$TEXT" --context "${CONTEXT:-2048}" \
  --max-sequences "${SEQUENCES:-0}" --max-kl "${MAX_KL:-0.05}" ${MAX_PPL_RATIO:+--max-ppl-ratio "$MAX_PPL_RATIO"} \
  ${BASELINE:+--baseline "$BASELINE"} --overwrite --report "$output/report.json" --html "$output/report.html" \
  --markdown "$output/summary.md" --junit "$output/gates.xml" "$@"
# A checkpoint of the format absorbed keeps the model's own card, which has no place for the report.
[ "$format" = absorbed ] && report='' || report=$output/report.json
oscar-export "$output/bundle" --format "$format" ${report:+--report "$report"} --model "$MODEL" -o "$output/serving"
