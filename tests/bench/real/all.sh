#!/usr/bin/env bash
# all.sh WORK [SECONDS]: real models from packages, bundles fitted on them, each cache served by vLLM, and one table a model (WORK/MODEL.md), with raw
# lines in WORK/real_engine.jsonl. What WORK has is not made again, so the work can be cut into calls: nothing is begun after SECONDS (default 540)
# of this call. Exit code 3: something is missing, call it again. Needs oscar-fit in PATH, vLLM 0.33 and the wheel.
# MODELS, CACHES and BITS choose some; AT_A_TIME caches share the GPU (default 4; speed is measured elsewhere).
set -u
work=${1:?usage: all.sh WORK [SECONDS]} budget=${2:-540}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work"
left() { [ $SECONDS -lt "$budget" ] || { echo "call it again: $1 is missing" >&2; exit 3; }; }
for model in ${MODELS:-smollm2-135m qwen2.5-coder-1.5b gemma-3-270m}; do
  place=$work/$model
  mkdir -p "$place/found"
  left "$model"
  [ -e "$place/model/generation_config.json" ] || { rm -rf "$place/model"; python3 "$here/models.py" "$model" "$place/model" || exit 1; }
  [ -e "$place/found/agent_eval.txt" ] || python3 "$here/texts.py" "$place/found" || exit 1
  caches=bf16
  for bits in ${BITS:-2.25 1.5 3 4}; do
    left "the bundle of $bits bits"
    [ -e "$place/oscar-$bits/oscar_bundle.json" ] ||
      oscar-fit --model "$place/model" --prompts "$place/found/agent_calib.jsonl" --bits "$bits" -o "$place/oscar-$bits" --no-progress || exit 1
    caches="$caches $place/oscar-$bits"
  done
  for cache in $caches ${CACHES-fp8 turboquant_4bit_nc turboquant_3bit_nc}; do
    for prefix in "" 1; do
      case $prefix$cache in 1*/oscar-2.25 | [!1]*) ;; *) continue ;; esac
      name=$(basename "$cache")${prefix:+-prefix}
      [ ! -e "$place/found/$name.done" ] || continue
      left "$name"
      while [ "$(jobs -rp | wc -l)" -ge "${AT_A_TIME:-4}" ]; do wait -n; done
      (PREFIX=$prefix timeout 500 python3 "$here/serve.py" "$place/model" "$cache" "$place/found" > "$place/found/$name.log" 2>&1 &&
        touch "$place/found/$name.done" || tail -n 5 "$place/found/$name.log" >&2) &
    done
  done
  wait
  python3 "$here/table.py" "$place/found" --lines "$work/real_engine.jsonl" > "$work/$model.md"
done
