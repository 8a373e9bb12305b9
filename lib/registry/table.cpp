// The rows of the registry: own methods, then methods of other papers, with the windows of the authors' code at decode
// time. `recent` counts the current token. A method without a window codes it before it is read (recent 0). The block
// methods read it before it is coded (recent 1). `flush` is the block that leaves the full-precision buffer at once.
#include "registry/registry.h"

namespace oscar {
namespace {

constexpr std::int64_t kResidual = 128;  // residual length of KIVI

SideCode side(CacheCode code, int bits, int group, CacheWindows windows = {0, 0, 1}) {
  return {.group = group, .code = code, .bits = bits, .windows = windows};
}

SideCode channels(SideCode s) {
  s.axis = CacheAxis::kChannel;
  return s;
}

MethodSpec same(std::string id, std::string summary, std::string source, const SideCode& both) {
  return {std::move(id), std::move(summary), std::move(source), both, both};
}

// KIVI (arXiv 2402.02750): keys per channel, a block of 128 tokens is coded when it is full; values per token. The last
// 128 values stay in full precision (129 with the current one, which is read before the oldest is coded).
MethodSpec kivi(std::string id, int group) {
  return {std::move(id), "2 bits, keys per channel and values per token in groups of " + std::to_string(group),
          "KIVI (arXiv 2402.02750)", channels(side(CacheCode::kUniform, 2, group, {0, 1, kResidual})),
          side(CacheCode::kUniform, 2, group, {0, kResidual + 1, 1})};
}

// TurboQuant, MSE variant (arXiv 2504.19874): a quarter of the channels has one bit more, with a separate quantizer.
MethodSpec turboquant() {
  SideCode s = side(CacheCode::kLloydMax, 2, 0);
  s.basis = CacheBasis::kRandom;
  s.boosted_share = 0.25, s.boosted_bits = 3;
  return same("turboquant2.5", "2.5 bits, random rotation and Lloyd-Max centroids, FP16 norm",
              "TurboQuant (arXiv 2504.19874), MSE variant", s);
}

// TurboQuant with the codes of vLLM's turboquant_4bit_nc and turboquant_3bit_nc, without their correction of norms and
// with a random rotation in place of a Hadamard one: keys by Lloyd-Max, values by the range of a token and head.
MethodSpec turboquant_served(int bits) {
  SideCode key = side(CacheCode::kLloydMax, bits, 0);
  key.basis = CacheBasis::kRandom;
  const std::string count = std::to_string(bits);
  return {"turboquant" + count, count + " bits, keys by random rotation and Lloyd-Max centroids, values by min/max",
          "TurboQuant (arXiv 2504.19874) as in vLLM", key, side(CacheCode::kUniform, bits, 0)};
}

// Methods of every comparison, and methods that oscar-fit makes.
std::vector<MethodRow> own_methods() {
  return {
      {.id = "bf16",
       .summary = "no quantization: keys and values rounded to BF16",
       .source = "baseline",
       .role = MethodRole::kBaseline,
       .by_default = true,
       .quantized = false},
      {.id = "naive2",
       .summary = "2 bits per token and head, min/max, no rotation",
       .source = "negative control",
       .role = MethodRole::kNegativeControl,
       .by_default = true},
      {.id = "hadamard2",
       .summary = "2 bits, min/max after a Hadamard rotation, no clip",
       .source = "QuaRot (arXiv 2404.00456), without calibration",
       .by_default = true,
       .transform = MethodTransform::kHadamard},
      {.id = "oscar",
       .summary = "2 bits after the rotation and clip of a bundle",
       .source = "OSCAR (github.com/FutureMLS-Lab/OSCAR)",
       .role = MethodRole::kReference,
       .transform = MethodTransform::kEigenvectors,
       .fit_summary = "eigenvectors of the target, Hadamard, bit reversal: M = R H P",
       .key_objective = "qqt_r_h_pbr",
       .value_objective = "sst_r_h_pbr",
       .head_objective = "cov_eig_hadamard_perhead",
       .head_id = "oscar-head"},
      {.id = "hadamard",
       .source = "bundle",
       .listed = false,
       .transform = MethodTransform::kHadamard,
       .fit_summary = "Hadamard matrix only, data-free"},
      {.id = "identity", .source = "bundle", .listed = false, .fit_summary = "no rotation"},
      {.id = "balanced",
       .summary = "2 bits after the transform of a bundle, which evens out rows and the metric of their errors",
       .source = "this toolchain",
       .transform = MethodTransform::kBalanced,
       .fit_summary = "rows and the metric of their errors made equal (not orthogonal), Hadamard; 2-bit codes"},
      {.id = "waterfill",
       .summary =
           "the default of oscar-fit: 0 to 4 bits for each block of channels within a budget (--bits of oscar-fit)",
       .source = "this toolchain",
       .transform = MethodTransform::kBalanced,
       .fit_summary = "balanced, with block widths that share out --bits over layers, keys, values and blocks",
       .allocates_bits = true,
       .preferred = true},
  };
}

std::vector<MethodSpec> other_methods() {
  return {
      same("fp8", "FP8 E4M3 with scale 1", "OCP FP8 E4M3, vLLM's default scale", side(CacheCode::kFloat8, 8, 0)),
      same("q4_0", "4 bits, signed-extreme groups of 32", "ggml q4_0", side(CacheCode::kSymmetric4, 4, 32)),
      kivi("kivi2", 32),
      kivi("kivi2-g128", 128),
      turboquant(),
      turboquant_served(4),
      turboquant_served(3),
  };
}

std::vector<MethodRow> build() {
  std::vector<MethodRow> rows = own_methods();
  for (MethodSpec& other : other_methods()) {
    rows.push_back({.id = other.id, .summary = other.summary, .source = other.source, .description = std::move(other)});
  }
  return rows;
}

}  // namespace

const std::vector<MethodRow>& method_registry() {
  static const std::vector<MethodRow> table = build();
  return table;
}

}  // namespace oscar
