#!/usr/bin/env bash
# first_answer.sh MODEL WORK: from a model to its first answer by the commands of docs/vllm.md and of the exported card, for a machine with a GPU
# and without network. MODEL is the folder of a checkpoint, in place of the model that the page names; WORK gets all files. The four commands are
# in PATH, and vLLM with oscar_kv is installed. Prints each command with its seconds, and the answer; another exit code than 0: something failed.
# Environment: VLLM, the program (default vllm; or "python3 -m vllm.entrypoints.cli.main"), PYTHON (python3), PORT (8000, as in the page), and
# START, the seconds that the server may take to start (300), and SERVE, more options of the server, such as its share of a GPU that others use too.
set -euo pipefail
usage="usage: first_answer.sh MODEL WORK"
model=$(realpath "${1:?$usage}") work=${2:?$usage} named=Qwen/Qwen2.5-Coder-1.5B-Instruct
root=$(cd "$(dirname "$0")/../../.." && pwd) page=$root/docs/vllm.md url=http://localhost:${PORT:-8000}
VLLM=${VLLM:-vllm} PYTHON=${PYTHON:-python3} server=
export HF_HUB_OFFLINE=1
mkdir -p "$work"
work=$(cd "$work" && pwd)

fail() { printf 'first_answer.sh: %s\n' "$1" >&2; [ ! -s "${2:-}" ] || tail -n 30 "$2" >&2; exit 1; }
# block FILE LANGUAGE WORD: the commands of the first such block that has the word, one a line, for this model.
block() {
  awk -v begin="\`\`\`$2" '$0 == begin {on = 1; text = ""; next} /^```/ {if (on && index(text, word)) {printf "%s", text; exit} on = 0}
    on {text = text $0 "\n"}' word="$3" "$1" | sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' |
    sed -e 's/^\$ //' -e "s|$named|$model|g" -e "s|/path/to/[A-Za-z0-9._-]*|$model|g" -e "s|vllm serve|$VLLM serve|" \
      -e "s|http://localhost:8000|$url|"
}
# timed COMMAND: runs it in this folder, with its output in WORK/log.
timed() {
  local begin=$SECONDS
  printf '$ %s\n' "$1"
  bash -c "$1" >"$work/log" 2>"$work/log.err" || { cat "$work/log" >>"$work/log.err"; fail "failed: $1" "$work/log.err"; }
  tail -n 6 "$work/log" | cut -c -200
  printf '  %d s\n' $((SECONDS - begin))
}

command -v curl >/dev/null || fail "curl is not installed, which asks the server"
! curl -sf "$url/health" >/dev/null || fail "a server answers at $url already; stop it"
cd "$work"
rm -rf coder* serving
ln -sfn "$root/sample_data" sample_data
mapfile -t commands < <(block "$page" sh oscar-export)
[ ${#commands[@]} -eq 3 ] || fail "$page has no block of the three commands"
for command in "${commands[@]}"; do timed "$command"; done

cd serving
serve=$(block README.md console "vllm serve") begin=$SECONDS
[ -n "$serve" ] || fail "$work/serving/README.md has no serve command"
serve+=${SERVE:+ $SERVE}
printf '$ %s\n' "$serve"
setsid bash -c "$serve${PORT:+ --port $PORT}" >"$work/server.log" 2>&1 &
server=$!
trap 'kill -- -$server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
until curl -sf "$url/health" >/dev/null; do
  kill -0 $server 2>/dev/null || fail "the server ended" "$work/server.log"
  [ $((SECONDS - begin)) -lt "${START:-300}" ] || fail "the server did not start in ${START:-300} s" "$work/server.log"
  sleep 1
done
printf '  %d s until it serves\n' $((SECONDS - begin))
timed "$(block "$page" console curl | grep '^curl')"
"$PYTHON" -c 'import json, sys; text = json.load(sys.stdin)["choices"][0]["message"]["content"]; print(text); sys.exit(not text.strip())' \
  <"$work/log" || fail "no answer" "$work/log"
timed "$PYTHON -m oscar_kv.serve_check $model oscar_bundle --url $url"
printf 'all: %d s\n' $SECONDS
