#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include "base/errors.h"
#include "kernels/gram.h"
#include "moments/device_gram.h"

namespace oscar {

bool device_gram(at::Tensor& sum, const at::Tensor& x) {
  if (!x.is_cuda() || x.scalar_type() != at::kBFloat16 || !kernels::gram_built(static_cast<int>(x.size(2))))
    return false;
  const at::Tensor rows = x.contiguous();
  const int kv_heads = static_cast<int>(sum.size(0)), d = static_cast<int>(x.size(2));
  const at::Tensor workspace = at::empty(
      {static_cast<std::int64_t>(kernels::gram_workspace_bytes(kv_heads, d) / sizeof(double))}, sum.options());
  kernels::GramParams p;
  p.x = static_cast<const std::uint16_t*>(rows.const_data_ptr());
  p.stride = rows.stride(0);
  p.sum = sum.data_ptr<double>();
  p.workspace = workspace.data_ptr<double>();
  p.tokens = rows.size(0);
  p.heads = static_cast<std::int32_t>(rows.size(1)), p.kv_heads = kv_heads, p.head_dim = d;
  const cudaError_t error = kernels::add_gram(p, c10::cuda::getCurrentCUDAStream().stream());
  if (error != cudaSuccess) {
    throw EnvironmentError(std::string("the GPU failed in add_gram (") + cudaGetErrorString(error) +
                           "); pass --device cpu");
  }
  return true;
}

}  // namespace oscar
