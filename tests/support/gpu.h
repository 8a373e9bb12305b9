// Tests that need a GPU say so with OSCAR_NEEDS_GPU(); CTest then reports them as skipped where there is none.
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

namespace oscar {

inline bool has_gpu() { return at::detail::getCUDAHooks().deviceCount() > 0; }

}  // namespace oscar

#define OSCAR_NEEDS_GPU() \
  if (!::oscar::has_gpu()) GTEST_SKIP() << "no GPU"
