#include "registry/method_spec.h"

#include <algorithm>

#include "base/errors.h"

namespace oscar {
namespace {

[[noreturn]] void refuse(const MethodSpec& method, const char* side, const std::string& reason) {
  throw UsageError("method '" + method.id + "' does not fit the model (" + side + "): " + reason +
                   "; leave it out of --methods");
}

void require_side(const MethodSpec& method, const SideCode& side, const char* name, int d) {
  const int group = side.group == 0 || side.axis == CacheAxis::kChannel ? d : side.group;
  if (group < d && d % group != 0) {
    refuse(method, name,
           "groups of " + std::to_string(group) + " channels do not divide the head size " + std::to_string(d));
  }
}

double parameter_bits(const SideCode& side, int d) {
  const double group = side.axis == CacheAxis::kToken && side.group == 0
                           ? d
                           : std::min(side.group, side.axis == CacheAxis::kToken ? d : side.group);
  switch (side.code) {
    case CacheCode::kUniform:
      return 32.0 / group;
    case CacheCode::kSymmetric4:
      return 16.0 / group;
    case CacheCode::kFloat8:
      return 0.0;
    case CacheCode::kLloydMax:
      return 16.0 * (side.boosted_share > 0 ? 2 : 1) / d;
  }
  return 0.0;
}

}  // namespace

int tile_tokens(const SideCode& side) { return side.axis == CacheAxis::kChannel ? side.group : 1; }

double bits_per_element(const SideCode& side, int head_dim) {
  double bits = side.bits + side.boosted_share * (side.boosted_bits - side.bits) + parameter_bits(side, head_dim);
  if (side.boosted_share == 0.0) bits = side.bits + parameter_bits(side, head_dim);
  return bits;
}

double held_bytes(const SideCode& side, int heads, int head_dim, std::int64_t tokens) {
  const std::int64_t unit = side.code == CacheCode::kUniform ? 128 : 1;
  const std::int64_t coded = side.windows.quantized_end(tokens) - side.windows.sink;
  const std::int64_t buffer = std::min(side.windows.sink + side.windows.recent + side.windows.flush - 1, tokens);
  const double bits = bits_per_element(side, head_dim) * static_cast<double>((coded + unit - 1) / unit * unit) +
                      16.0 * static_cast<double>(buffer);
  return bits * static_cast<double>(heads) * head_dim / 8.0;
}

void require_fit(const MethodSpec& method, int head_dim) {
  require_side(method, method.key, "keys", head_dim);
  require_side(method, method.value, "values", head_dim);
}

}  // namespace oscar
