# Sourced by command_times.sh and calibration_times.sh, which set `root`, `work` and `model`.

# Makes the checkpoint of random weights where there is none, with these options of make_random_checkpoint.py, and reads it.
prepare() {
  [ -d "$model" ] || "${PYTHON:-python3}" "$root/tests/bench/make_random_checkpoint.py" "$model" "$@" || exit 1
  cat "$model"/*.safetensors >/dev/null  # into the page cache
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
  echo "$(nproc) cores"
}

# timed NAME command...: what it took, and its table. Output and log are left in NAME.out and NAME.err of the folder.
timed() {
  local name=$1 begin end code
  shift
  begin=$(date +%s%N)
  "$@" -v --no-progress >"$work/$name.out" 2>"$work/$name.err"
  code=$?
  end=$(date +%s%N)
  printf '== %s: exit code %d, %d.%03d s\n' "$name" $code $(((end - begin) / 1000000000)) $(((end - begin) / 1000000 % 1000))
  grep -E "were checked in|on the CPU, because" "$work/$name.err"
  sed -n '/where the time went/,$p' "$work/$name.err"
  grep -E "writer_reader|prefill_decode" "$work/$name.out"
  [ $code -le 1 ] || tail -n 3 "$work/$name.err"
}
