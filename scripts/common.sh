# Shared by the scripts of this folder (sourced, bash): paths, messages, steps with progress.
set -euo pipefail

OSCAR_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The virtual environment is outside the checkout, in the user's cache, so that clones share it. If HOME is not set
# (services, containers), the user database gives the home directory. Without either, it is in the build folder.
if [ -z "${HOME:-}" ]; then
  HOME=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6 || true)
  [ -n "$HOME" ] && [ -d "$HOME" ] || HOME=$OSCAR_ROOT/build/home
  export HOME
fi
OSCAR_ENV=${OSCAR_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/oscar-toolchain/env}
OSCAR_LOGS=${OSCAR_LOGS:-$OSCAR_ROOT/build/logs}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 4
}

say() { printf '%s\n' "$*"; }

# step "What is done" log-name command...: runs the command with its output in a log file and shows one line. This is a
# running clock on a terminal, or a line per minute otherwise, then the time taken. On failure it shows the end of the
# log.
step() {
  local title=$1 log=$OSCAR_LOGS/$2.log start=$SECONDS pid status=0 next=60
  shift 2
  mkdir -p "$OSCAR_LOGS"
  [ -t 1 ] || printf '%s ...\n' "$title"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  trap 'kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 1 ]; then
      printf '\r\033[K%s ... %d s' "$title" $((SECONDS - start))
    elif [ $((SECONDS - start)) -ge $next ]; then
      printf '  ... %d s%s\n' $((SECONDS - start)) "$(last_words "$log")"
      next=$((next + 60))
    fi
    sleep 0.2
  done
  wait "$pid" || status=$?
  trap - INT TERM
  [ -t 1 ] && printf '\r\033[K'
  if [ "$status" -ne 0 ]; then
    printf '%s: failed after %d s (exit code %d). The end of %s:\n' "$title" $((SECONDS - start)) "$status" "$log" >&2
    tail -n 40 "$log" >&2
    return "$status"
  fi
  if [ -t 1 ]; then
    printf '%s: done in %d s\n' "$title" $((SECONDS - start))
  elif [ $((SECONDS - start)) -ge 2 ]; then
    printf '  done in %d s\n' $((SECONDS - start))
  fi
}

# The last "[12/340]" of a log, which shows that a build is running.
last_words() {
  local mark
  mark=$(tail -c 4000 "$1" | tr '\r' '\n' | grep -oE '^ *\[ *[0-9]+/[0-9]+\]|^ *[0-9]+/[0-9]+ Test' | tail -n 1 || true)
  [ -z "$mark" ] || printf ', %s' "$(printf '%s' "$mark" | tr -d ' ' | sed 's/Test$/ tests/')"
}

# Parallel compilations: the number of cores, limited to one per 1.6 GiB of free memory.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1048576 / 1.6)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  [ "$memory" -lt "$cores" ] && cores=$memory
  printf '%d' "$cores"
}

# Prints the folder of a CUDA toolkit 13 on this machine, or fails.
system_cuda() {
  local nvcc
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc /usr/local/cuda-13*/bin/nvcc; do
    if [ -x "$nvcc" ] && "$nvcc" --version 2>/dev/null | grep -q 'release 13\.'; then
      dirname "$(dirname "$(readlink -f "$nvcc")")"
      return 0
    fi
  done
  return 1
}

# The CUDA toolkit of the virtual environment (nvcc from PyPI); empty if there is none.
environment_cuda() {
  local folder
  for folder in "$OSCAR_ENV"/lib/python3.*/site-packages/nvidia/cu13; do
    [ -x "$folder/bin/nvcc" ] && printf '%s' "$folder" && return 0
  done
  return 1
}

cuda_root() { system_cuda || environment_cuda; }

# The compiler's options that keep the folders of this machine out of what is released.
path_map() { printf -- '-ffile-prefix-map=%s=. -ffile-prefix-map=%s=env' "$OSCAR_ROOT" "$OSCAR_ENV"; }
