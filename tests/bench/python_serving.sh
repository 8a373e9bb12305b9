#!/usr/bin/env bash
# Tests and measures the CUDA operators of python/oscar_kv on a machine with a GPU, torch 2.11, transformers and pytest; needs
# no network and no build: the shared object is named by OSCAR_KV_OPERATORS. Without a build, OSCAR_KL_CASES names what
# tests/python/kl_cases.py has written on a machine with one. About five minutes on an H200; tests/bench/python_caches.py measures full caches.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OSCAR_KV_OPERATORS=${OSCAR_KV_OPERATORS:-$PWD/build/oscar_kv/liboscar_kv_cuda.so} OSCAR_SOURCE_DIR=$PWD OSCAR_BUILD_DIR=$PWD/build
python3 -c 'import torch, transformers; print(torch.__version__, transformers.__version__, torch.cuda.get_device_name())'
status=0
if python3 -c 'import pytest' 2>/dev/null; then
  timeout "${OSCAR_TEST_SECONDS:-170}" python3 -m pytest -q -rfE -s --tb=short -p no:cacheprovider -k cuda \
    tests/python/test_cuda_operators.py tests/python/test_two_gpus.py tests/python/test_kl.py tests/python/test_slot_kv.py tests/python/test_prefix_kv.py || status=$?
else
  echo "pytest is missing: tests were not run" && status=1
fi
timeout "${OSCAR_BENCH_SECONDS:-130}" python3 tests/bench/python_serving.py || status=$?
exit $status
