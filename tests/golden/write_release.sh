#!/bin/sh
# Writes tests/golden/VERSION: statistics, a bundle and a report of a release, by its commands. usage: write_release.sh VERSION [BIN]
# Once a release is tagged its folder stays as it is; tests/python/test_golden_release.py reads all of them.
set -eu
cd "$(dirname "$0")/../.."
out=tests/golden/$1 bin=${2:-build/bin} model=sample_data/tiny-qwen2 prompts=sample_data/prompts.jsonl
mkdir "$out"
"$bin/oscar-collect" -q --model $model --prompts $prompts --tokens 3000 --seq-len 512 --far-pairs 16,64 --rows 16 --text-hashes \
  --date 2026-01-01 -o "$out/statistics.safetensors"
"$bin/oscar-fit" -q "$out/statistics.safetensors" --model $model --text $prompts --windows 16,64 --curve-context 512 --curve-sequences 4 \
  --date 2026-01-01 -o "$out/bundle"
"$bin/oscar-verify" -q --model $model --bundle "$out/bundle" --text sample_data/heldout.txt --context 512 --max-sequences 4 \
  --bootstrap 100 --report "$out/report.json"
