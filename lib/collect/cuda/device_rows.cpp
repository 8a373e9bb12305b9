#include "collect/device_sums.h"

#include <ATen/ATen.h>

#include "base/cuda/launch.h"
#include "kernels/gram/head_rows.h"

namespace oscar {
namespace {

// x [T, H, d], whose heads must be contiguous. pairs: channel pairs that RoPE rotates.
bool takes(const at::Tensor& x, std::int64_t pairs = 0) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.stride(2) == 1 && x.stride(1) == x.size(2) &&
         x.stride(0) % 4 == 0 && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 8 == 0 &&
         kernels::head_rows_built(static_cast<int>(x.size(2)), static_cast<int>(pairs));
}

kernels::HeadRowsParams params_of(const at::Tensor& x, std::int64_t kv_heads) {
  kernels::HeadRowsParams p{
      .x = static_cast<const std::uint16_t*>(x.const_data_ptr()), .stride = x.stride(0), .tokens = x.size(0)};
  p.heads = static_cast<std::int32_t>(x.size(1)), p.kv_heads = static_cast<std::int32_t>(kv_heads);
  p.head_dim = static_cast<std::int32_t>(x.size(2));
  p.pairs = p.head_dim % 8 == 0 ? p.head_dim / 2 : 0;  // a thread takes two parts of a row
  return p;
}

// Rotations must outlive the launch.
struct Rotations {
  at::Tensor cos, sin;
  Rotations(const Unrotation::Rows& rows, kernels::HeadRowsParams& p)
      : cos(rows.cos.contiguous()), sin(rows.sin.contiguous()) {
    p.cos = cos.const_data_ptr<float>(), p.sin = sin.const_data_ptr<float>();
    p.pairs = static_cast<std::int32_t>(cos.size(1));
  }
};

void launch(const kernels::HeadRowsParams& p) { check_launch(kernels::head_rows(p, current_stream()), "head_rows"); }

at::Tensor empty_rows(const at::Tensor& x, at::IntArrayRef shape) {
  return at::empty(shape, x.options().dtype(at::kFloat));
}

}  // namespace

at::Tensor device_rows(const at::Tensor& x, std::int64_t kv_heads) {
  if (!takes(x)) return {};
  const at::Tensor out = empty_rows(x, {kv_heads, x.size(0) * x.size(1) / kv_heads, x.size(2)});
  kernels::HeadRowsParams p = params_of(x, kv_heads);
  p.plain = out.data_ptr<float>();
  launch(p);
  return out;
}

at::Tensor device_rows_before(const at::Tensor& x, std::int64_t kv_heads, const Unrotation::Rows& rows) {
  if (!takes(x, rows.cos.size(1))) return {};
  const at::Tensor out = empty_rows(x, {kv_heads, x.size(0) * x.size(1) / kv_heads, x.size(2)});
  kernels::HeadRowsParams p = params_of(x, kv_heads);
  const Rotations rotations(rows, p);
  p.before = out.data_ptr<float>();
  launch(p);
  return out;
}

at::Tensor device_weighted_rows(const at::Tensor& x, const at::Tensor& weight) {
  if (!takes(x)) return {};
  const at::Tensor out = empty_rows(x, {x.size(1), x.size(0), x.size(2)});
  kernels::HeadRowsParams p = params_of(x, x.size(1));
  p.square = weight.const_data_ptr<float>(), p.square_stride = weight.stride(0);
  p.plain = out.data_ptr<float>();
  launch(p);
  return out;
}

at::Tensor device_head_rows(const at::Tensor& x, std::int64_t copies) {
  if (!takes(x)) return {};
  const at::Tensor out = empty_rows(x, {x.size(1) * copies, x.size(0), x.size(2)});
  kernels::HeadRowsParams p = params_of(x, x.size(1));
  p.copies = static_cast<std::int32_t>(copies);
  p.plain = out.data_ptr<float>();
  launch(p);
  return out;
}

at::Tensor device_far_rows(const at::Tensor& x, std::int64_t kv_heads, const at::Tensor& weight,
                           const Unrotation::Rows& rows) {
  if (!takes(x, rows.cos.size(1))) return {};
  const at::Tensor out = empty_rows(x, {2, kv_heads, x.size(0) * x.size(1) / kv_heads, x.size(2)});
  kernels::HeadRowsParams p = params_of(x, kv_heads);
  const Rotations rotations(rows, p);
  p.square = weight.const_data_ptr<float>(), p.square_stride = weight.stride(0);
  p.plain = out.data_ptr<float>(), p.before = p.plain + out.stride(0);
  p.by_member = true;
  launch(p);
  return out;
}

}  // namespace oscar
