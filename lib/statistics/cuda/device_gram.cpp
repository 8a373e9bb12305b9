#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include "base/errors.h"
#include "kernels/gram/gram.h"
#include "statistics/device_gram.h"

namespace oscar {

namespace {

bool built(const at::Tensor& x) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && kernels::gram_built(static_cast<int>(x.size(2)));
}

// p: shift and row_sum, if any. x [T, H, d] contiguous.
void add(at::Tensor& sum, const at::Tensor& x, kernels::GramParams p) {
  const int kv_heads = static_cast<int>(sum.size(0)), d = static_cast<int>(x.size(2));
  const at::Tensor workspace = at::empty(
      {static_cast<std::int64_t>(kernels::gram_workspace_bytes(kv_heads, d) / sizeof(double))}, sum.options());
  p.x = static_cast<const std::uint16_t*>(x.const_data_ptr());
  p.stride = x.stride(0);
  p.sum = sum.data_ptr<double>();
  p.workspace = workspace.data_ptr<double>();
  p.tokens = x.size(0);
  p.heads = static_cast<std::int32_t>(x.size(1)), p.kv_heads = kv_heads, p.head_dim = d;
  const cudaError_t error = kernels::add_gram(p, c10::cuda::getCurrentCUDAStream().stream());
  if (error != cudaSuccess) {
    throw EnvironmentError(std::string("the GPU failed in add_gram (") + cudaGetErrorString(error) +
                           "); pass --device cpu");
  }
}

}  // namespace

bool device_gram(at::Tensor& sum, const at::Tensor& x) {
  if (!built(x)) return false;
  add(sum, x.contiguous(), {});
  return true;
}

bool device_gram_about_mean(at::Tensor& sum, at::Tensor& row_sum, const at::Tensor& x) {
  if (!built(x) || x.size(1) != sum.size(0)) return false;
  if (x.size(0) == 0) return true;
  const at::Tensor rows = x.contiguous(), mean = rows.mean(0);  // any shift near the rows will do: BF16
  kernels::GramParams p;
  p.shift = static_cast<const std::uint16_t*>(mean.const_data_ptr());
  p.row_sum = row_sum.data_ptr<double>();
  add(sum, rows, p);
  return true;
}

}  // namespace oscar
