#include "methods/device_codes.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <stdexcept>

#include "base/errors.h"
#include "kernels/tiles/code_tiles.h"
#include "kernels/tiles/token_rows.h"
#include "methods/lloyd_max.h"

namespace oscar {
namespace {

void check_launch(cudaError_t error) {
  if (error == cudaSuccess) return;
  throw EnvironmentError(std::string("the GPU failed in the codes of a method (") + cudaGetErrorString(error) +
                         "); pass --device cpu");
}

kernels::TileCode kernel_code(CacheCode code) {
  switch (code) {
    case CacheCode::kUniform:
      return kernels::TileCode::kUniform;
    case CacheCode::kIntegerZero:
      return kernels::TileCode::kIntegerZero;
    case CacheCode::kSymmetric4:
      return kernels::TileCode::kSymmetric4;
    case CacheCode::kFloat8:
      return kernels::TileCode::kFloat8;
    case CacheCode::kLloydMax:
      return kernels::TileCode::kLloydMax;
  }
  throw std::logic_error("the kernel of tiles has no such code");
}

void code_lloyd_max(const SideCode& side, kernels::CodeTilesParams p, const at::Tensor& rows, cudaStream_t stream) {
  const auto boosted = static_cast<std::int32_t>(std::llround(side.boosted_share * static_cast<double>(p.quant_group)));
  if (boosted > 0 && p.quant_group != p.head_dim) throw std::logic_error("boosted channels of a group within a head");
  const auto code = [&](std::int32_t first, std::int32_t count, int bits) {
    p.first_channel = first, p.channels = count, p.bits = bits;
    if (boosted > 0) p.quant_group = count;
    const at::Tensor centroids = at::tensor(lloyd_max_centroids(bits), at::kDouble).to(rows.device());
    p.centroids = centroids.const_data_ptr<double>();
    check_launch(kernels::code_tiles(p, stream));
  };
  if (boosted > 0) code(0, boosted, side.boosted_bits);
  code(boosted, p.head_dim - boosted, side.bits);
}

}  // namespace

void code_rows_on_device(const SideCode& side, const at::Tensor& rows) {
  const c10::DeviceGuard guard(rows.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  float* data = rows.data_ptr<float>();
  const auto heads = static_cast<std::int32_t>(rows.size(1)), d = static_cast<std::int32_t>(rows.size(2));
  kernels::CodeTilesParams p;
  p.rows = data, p.tokens = rows.size(0), p.heads = heads, p.head_dim = d;
  p.channels = d;
  p.channel_axis = side.axis == CacheAxis::kChannel;
  p.quant_group = side.group == 0 ? d : (p.channel_axis ? side.group : std::min(side.group, d));
  p.code = kernel_code(side.code);
  p.bits = side.bits, p.clip = static_cast<float>(side.clip);
  if (side.code == CacheCode::kLloydMax) return code_lloyd_max(side, p, rows, stream);
  check_launch(kernels::code_tiles(p, stream));
}

void hadamard_on_device(const at::Tensor& rows, std::int64_t order) {
  const c10::DeviceGuard guard(rows.device());
  check_launch(kernels::hadamard_rows(rows.data_ptr<float>(), rows.numel() / order, static_cast<std::int32_t>(order),
                                      c10::cuda::getCurrentCUDAStream().stream()));
}

at::Tensor token_norms_on_device(const at::Tensor& rows) {
  const c10::DeviceGuard guard(rows.device());
  at::Tensor norms = at::empty({rows.size(0), 1, 1}, rows.options());
  check_launch(kernels::token_norms(rows.const_data_ptr<float>(), rows.size(0), rows.size(1) * rows.size(2),
                                    norms.data_ptr<float>(), c10::cuda::getCurrentCUDAStream().stream()));
  return norms;
}

}  // namespace oscar
