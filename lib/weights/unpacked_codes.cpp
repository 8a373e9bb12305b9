#include "weights/unpacked_codes.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>

namespace oscar {
namespace {

// uint8 [..., C] -> int32 [..., 2 C]: alternating low and high halves.
at::Tensor halves(const at::Tensor& bytes) {
  const at::Tensor low = at::bitwise_and(bytes, 15), high = at::bitwise_right_shift(bytes, 4);
  return at::stack({low, high}, -1).flatten(-2).to(at::kInt);
}

at::Tensor looked_up(const at::Tensor& table, const at::Tensor& codes) {
  return table.to(codes.device()).index_select(0, codes.flatten()).view(codes.sizes());
}

}  // namespace

at::Tensor unpacked_integers(const at::Tensor& words, std::int64_t bits) {
  // Little-endian. contiguous() is not enough: a transposed row of one word counts as contiguous with another stride.
  const at::Tensor bytes = words.clone(at::MemoryFormat::Contiguous).view(at::kByte);
  return bits == 4 ? halves(bytes).to(at::kFloat) : bytes.to(at::kFloat);
}

at::Tensor unpacked_e2m1(const at::Tensor& bytes) {
  static const at::Tensor table = at::tensor(
      {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f});
  return looked_up(table, halves(bytes));
}

at::Tensor e8m0_scales(const at::Tensor& bytes) {
  static const at::Tensor table = [] {
    std::array<float, 256> powers;
    for (int i = 0; i < 255; ++i) powers[static_cast<std::size_t>(i)] = std::ldexp(1.0f, i - 127);
    powers[255] = std::numeric_limits<float>::quiet_NaN();
    return at::tensor(powers);
  }();
  return looked_up(table, bytes.to(at::kInt));
}

at::Tensor scaled_groups(const at::Tensor& codes, const at::Tensor& zeros, const at::Tensor& scale,
                         const at::Tensor& groups) {
  const std::int64_t rows = codes.size(0), columns = codes.size(1);
  if (groups.defined()) {
    codes.sub_(zeros.dim() == 2 ? zeros.index_select(1, groups) : zeros);
    return codes.mul_(scale.index_select(1, groups));
  }
  const at::Tensor grouped = codes.view({rows, scale.size(1), -1});
  grouped.sub_(zeros.dim() == 2 ? zeros.unsqueeze(2) : zeros).mul_(scale.unsqueeze(2));
  return grouped.view({rows, columns});
}

}  // namespace oscar
