#!/usr/bin/env bash
# unpack.sh PARTS SITE: what make_parts.py wrote (all parts in one folder) into SITE, to be named in PYTHONPATH. Needs python3, cc, xz.
set -eu
parts=$1 site=$2
mkdir -p "$site"
site=$(cd "$site" && pwd)
cat "$parts"/part.* | tar x -C "$parts"
for archive in "$parts"/*.xz; do
  name=$(basename "$archive" .xz)
  case $name in
    rest.tar) xz -T0 -dc "$archive" | tar x -C "$site" & ;;
    *) path=$site/${name//__//}; mkdir -p "$(dirname "$path")"; xz -T0 -dc "$archive" >"$path" & ;;
  esac
done
wait
python3 -m compileall -qq -j 0 "$site"/{sglang,torch,transformers,triton} &  # else each process of SGLang does it at its first import
chmod +x "$site"/torch/bin/* "$site"/triton/backends/nvidia/bin/* 2>/dev/null || true
# A kernel for Blackwell. Its module needs the CUTLASS DSL, two more parts, only to say that other cards do not use it.
cat >"$site/sglang/kernels/ops/gemm/cutedsl_dual_gemm.py" <<'TEXT'
from types import SimpleNamespace

MAX_DUAL_GEMM_DECODE_TOKENS = 0
DualGemmQuantMode = SimpleNamespace(UNQUANT=None, STATIC_PER_TENSOR=None, STATIC_PER_TOKEN=None, DYNAMIC_PER_TENSOR=None, DYNAMIC_PER_TOKEN=None)


def can_use_dual_gemm(*arguments, **named):
    return False
TEXT
# Functions of NCCL 2.30 that torch 2.14 links and calls only for features that are not used here. PYTHONPATH cannot carry LD_PRELOAD: name
# the library there as well.
names="CommGetUniqueId CommGrow CommMemStats CommResume CommSuspend GetLsaMultimemDevicePointer GetPeerDevicePointer PutSignal Signal
  WaitSignal WinGetUserPtr"
{ echo '#include <stdlib.h>'; for name in $names; do echo "int nccl$name(void) { abort(); }"; done; } >"$site/nccl_later.c"
cc -shared -fPIC -o "$site/libnccl_later.so" "$site/nccl_later.c"
wait
echo "PYTHONPATH=$site LD_PRELOAD=$site/libnccl_later.so SGLANG_USE_SGL_FA3_KERNEL=1"
