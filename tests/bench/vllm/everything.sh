#!/usr/bin/env bash
# everything.sh LINES.jsonl [SECONDS]: all rows of the tables of docs/vllm.md and lab/serve.md on this GPU, each cache in processes of its own.
# Rows that LINES.jsonl has are skipped, so the work can be cut into calls: a process starts only if it can end within SECONDS (default
# 550) of this call. Exit code 3: rows are missing, call it again. CACHES and ROWS choose some of them.
# tests/bench/vllm/table.py writes the table.
set -u
lines=${1:?usage: everything.sh LINES.jsonl [SECONDS]} budget=${2:-550}
here=$(cd "$(dirname "$0")" && pwd)
caches=${CACHES:-bf16 uniform blocks fp8 turboquant_3bit_nc turboquant_4bit_nc}
# The rows of one process. A full cache is asked for at most MOST requests.
rows=${ROWS:-8192:64:1,32768:64:1,100000:64:1 8192:128:16,8192:64:16,8192:64:40 8192:1024:fill 1024:8192:fill}
touch "$lines"
begin=$SECONDS missing=0
for group in $rows; do
  case $group in
    *:8192:*) longest=${LONGEST:-500} ;; # thousands of steps
    *) longest=${LONGEST:-240} ;;
  esac
  for cache in $caches; do
    # shellcheck disable=SC2046,SC2086
    set -- $(python3 "$here/table.py" "$lines" --missing "$cache" ${group//,/ })
    [ $# -gt 0 ] || continue
    if [ $((SECONDS - begin + longest)) -gt "$budget" ]; then
      missing=1
      continue
    fi
    log=$(mktemp)
    printf '%s: %s\n' "$cache" "$*" >&2
    EAGER_COMPILE=${EAGER_COMPILE-1} MOST=${MOST:-96} timeout "$longest" \
      python3 "$here/throughput.py" "$cache" "$@" 2> "$log" | grep '^{' >> "$lines"
    code=${PIPESTATUS[0]}
    if [ "$code" -ne 0 ]; then # noted, so that the next call goes on with other rows; delete the line to try again
      tail -n 30 "$log" >&2
      reason=$(grep -E 'Error|error:' "$log" | tail -n 1)
      failed=$(python3 "$here/table.py" "$lines" --failed "$cache" "$code" "${reason:-$(tail -n 1 "$log")}" "$@")
      [ -z "$failed" ] || printf '%s\n' "$failed" >> "$lines"
    fi
    rm -f "$log"
  done
done
[ $missing -eq 0 ] || { printf 'rows are missing: call it again\n' >&2; exit 3; }
python3 "$here/table.py" "$lines"
