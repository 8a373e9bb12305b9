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
    case CacheCode::kBoosted:
      return kernels::TileCode::kUniform;
    case CacheCode::kIntegerZero:
      return kernels::TileCode::kIntegerZero;
    case CacheCode::kSymmetric8:
      return kernels::TileCode::kSymmetric8;
    case CacheCode::kSymmetric4:
      return kernels::TileCode::kSymmetric4;
    case CacheCode::kFloat8:
      return kernels::TileCode::kFloat8;
    case CacheCode::kLloydMax:
      return kernels::TileCode::kLloydMax;
    case CacheCode::kSinkhorn:
    case CacheCode::kGaussianVector:
      break;
  }
  throw std::logic_error("the kernel of tiles has no such code");
}

// [tiles, H, d] 1 for the channels with the largest mean |x| of each tile; ties go to the lower channel.
at::Tensor boosted_channels(const SideCode& side, const at::Tensor& rows) {
  const std::int64_t heads = rows.size(1), d = rows.size(2);
  const at::Tensor size = rows.view({-1, side.group, heads, d}).abs().sum(1, false, at::kDouble);
  const at::Tensor order = std::get<1>(size.sort(/*stable=*/true, 2, /*descending=*/true));
  const auto count = static_cast<std::int64_t>(side.boosted_share * static_cast<double>(d) + 1e-6);
  at::Tensor chosen = at::zeros(size.sizes(), rows.options().dtype(at::kByte));
  return chosen.scatter_(2, order.narrow(2, 0, std::min(count, d)), 1);
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

void code_rows_on_device(const SideCode& side, bool is_value, const at::Tensor& rows) {
  const c10::DeviceGuard guard(rows.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  float* data = rows.data_ptr<float>();
  const auto heads = static_cast<std::int32_t>(rows.size(1)), d = static_cast<std::int32_t>(rows.size(2));
  if (side.code == CacheCode::kSinkhorn) {
    check_launch(kernels::sinkhorn_tiles(
        {data, rows.size(0), heads, d, static_cast<std::int32_t>(tile_tokens(side)), side.bits, is_value}, stream));
    return;
  }
  kernels::CodeTilesParams p;
  p.rows = data, p.tokens = rows.size(0), p.heads = heads, p.head_dim = d;
  p.channels = d;
  p.channel_axis = side.axis == CacheAxis::kChannel;
  p.quant_group = side.group == 0 ? d : (p.channel_axis ? side.group : std::min(side.group, d));
  p.code = kernel_code(side.code);
  p.bits = side.bits, p.clip = static_cast<float>(side.clip);
  p.unit_norm = side.unit_norm;
  if (side.code == CacheCode::kLloydMax) return code_lloyd_max(side, p, rows, stream);
  at::Tensor boosted;
  if (side.code == CacheCode::kBoosted) {
    boosted = boosted_channels(side, rows);
    p.boosted = boosted.const_data_ptr<std::uint8_t>(), p.boosted_bits = side.boosted_bits;
  }
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
