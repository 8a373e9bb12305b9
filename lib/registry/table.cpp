// The rows of the registry: ours, then the methods of other papers. Windows of the latter are those of the authors'
// code at decode time: `recent` counts the current token, which a method without a window codes before it is read
// (recent 0), and which the block methods read before it is coded (recent 1); `flush` is the block that leaves the
// full-precision buffer at once.
#include "registry/registry.h"

namespace oscar {
namespace {

constexpr std::int64_t kResidual = 128;  // residual length of KIVI, OScaR and Kitty

SideCode side(CacheCode code, int bits, int group, CacheWindows windows = {0, 0, 1}) {
  SideCode s;
  s.code = code;
  s.bits = bits;
  s.group = group;
  s.windows = windows;
  return s;
}

SideCode channels(SideCode s) {
  s.axis = CacheAxis::kChannel;
  return s;
}

SideCode hadamard(SideCode s, int order = 0) {
  s.basis = CacheBasis::kHadamard;
  s.basis_size = order;
  return s;
}

MethodSpec same(std::string id, std::string summary, std::string source, const SideCode& both) {
  return {std::move(id), std::move(summary), std::move(source), both, both, 0};
}

// KIVI (arXiv 2402.02750): keys per channel, a block of 128 tokens coded when it is full; values per token, the last
// 128 in full precision (129 with the current one, which is read before the oldest is coded).
MethodSpec kivi(std::string id, int group, std::int64_t sink) {
  return {std::move(id),
          "2 bits, keys per channel and values per token in groups of " + std::to_string(group) +
              (sink > 0 ? ", the first " + std::to_string(sink) + " tokens in BF16" : std::string()),
          "KIVI (arXiv 2402.02750)",
          channels(side(CacheCode::kUniform, 2, group, {sink, 1, kResidual})),
          side(CacheCode::kUniform, 2, group, {sink, kResidual + 1, 1}),
          0};
}

// OScaR (arXiv 2605.19660): canalized rotation (Hadamard after RoPE), then omni-token scaling (one norm over all heads
// of a token), then per-channel integer codes; values Hadamard, per token. Both sides leave in blocks of 128.
MethodSpec oscar_tns(std::string id, int group) {
  SideCode key = channels(hadamard(side(CacheCode::kIntegerZero, 2, group, {0, 1, kResidual})));
  key.token_norm = true;
  return {std::move(id),
          "2 bits, Hadamard, token norms, keys per channel in groups of " + std::to_string(group),
          "OScaR (arXiv 2605.19660, repository ZunhaiSu/OScaR-KV-Quant)",
          key,
          hadamard(side(CacheCode::kIntegerZero, 2, group, {0, 1, kResidual})),
          0};
}

// TurboQuant, MSE variant (arXiv 2504.19874). A fractional width: a quarter of the channels has one bit more, as two
// quantisers of their own.
MethodSpec turboquant(std::string id, int bits, bool half) {
  SideCode s = side(CacheCode::kLloydMax, bits, 0);
  s.basis = CacheBasis::kRandom;
  if (half) s.boosted_share = 0.25, s.boosted_bits = bits + 1;
  return same(std::move(id),
              std::to_string(bits) + (half ? ".5" : "") + " bits, random rotation and Lloyd-Max centroids, FP16 norm",
              "TurboQuant (arXiv 2504.19874), MSE variant", s);
}

// The presets of vLLM (pull request 38479): keys Hadamard and Lloyd-Max, values plain and uniform over the head, the
// first and last two layers in BF16.
MethodSpec vllm_preset(std::string id, const SideCode& key, int value_bits) {
  return {std::move(id),
          "vLLM preset of TurboQuant: keys Hadamard and Lloyd-Max, values uniform, 2 + 2 layers in BF16",
          "vLLM pull request 38479",
          key,
          side(CacheCode::kUniform, value_bits, 0),
          2};
}

SideCode vllm_key(int bits) {
  SideCode s = hadamard(side(CacheCode::kLloydMax, bits, 0));
  s.unit_norm = true;
  return s;
}

// RotateKV (arXiv 2501.16383): keys before RoPE, Hadamard over four heads, channels sorted by their sum, integer codes
// with range factor 0.8; values Hadamard. The authors keep the 20 tokens of largest hidden activations; the cache does
// not see hidden states, so the first 20 tokens, where attention sinks sit, are kept instead.
MethodSpec rotatekv() {
  constexpr std::int64_t kPivots = 20;
  SideCode key = side(CacheCode::kIntegerZero, 2, 128, {kPivots, 0, 1});
  key.basis = CacheBasis::kGroupedHeads;
  key.basis_size = 4;
  key.before_rope = key.reorder = true;
  key.clip = 0.8;
  SideCode value = hadamard(side(CacheCode::kIntegerZero, 2, 128, {kPivots, 0, 1}));
  value.clip = 0.8;
  return {"rotatekv2",
          "2 bits, keys before RoPE: Hadamard over 4 heads, sorted channels; range factor 0.8",
          "RotateKV (arXiv 2501.16383)",
          key,
          value,
          0};
}

// KVarN (arXiv 2606.03458), k2v2: Hadamard, tiles of 128 tokens scaled to equal row and column deviation, keys per
// channel, values per token; the first 128 tokens and the open tile in full precision.
MethodSpec kvarn() {
  SideCode key = channels(hadamard(side(CacheCode::kSinkhorn, 2, 128, {128, 1, 128})));
  SideCode value = hadamard(side(CacheCode::kSinkhorn, 2, 128, {128, 1, 128}));
  return {"kvarn2",
          "2 bits, Hadamard, tiles of 128 tokens with equalised rows and columns",
          "KVarN (arXiv 2606.03458)",
          key,
          value,
          0};
}

// Kitty (arXiv 2511.18643): KIVI with pages of 128 tokens, 32 tokens of sink, and the eighth of the key channels with
// the largest mean magnitude in the page at 4 bits.
MethodSpec kitty() {
  SideCode key = channels(side(CacheCode::kBoosted, 2, 128, {32, 2, 128}));
  key.boosted_share = 0.125;
  key.boosted_bits = 4;
  return {"kitty2",
          "2 bits, keys per channel with an eighth of the channels at 4 bits, pages of 128",
          "Kitty (arXiv 2511.18643)",
          key,
          side(CacheCode::kUniform, 2, 128, {32, kResidual + 1, 1}),
          0};
}

// NSNQuant (arXiv 2505.18231), 1 or 2 bits: tiles of 64 tokens are normalised, lose their mean and are normalised
// again; Hadamard; a universal codebook for eight channels. A tile is coded when it is full.
MethodSpec nsn(const char* id, int bits) {
  constexpr std::int64_t kTile = 64;
  SideCode side_code = hadamard(side(CacheCode::kGaussianVector, bits, 0, {0, 1, kTile}));
  side_code.shift_tile = kTile;
  SideCode key = side_code;
  key.before_rope = true;
  return {id,
          bits == 1
              ? "1 bit, tiles of 64 tokens normalised and less their mean, Hadamard, universal codebook of 8 channels"
              : "2 bits, as nsn with a codebook of magnitudes and a bit for each sign",
          "NSNQuant (arXiv 2505.18231)",
          key,
          side_code,
          0};
}

// What every comparison has, and what oscar-fit makes.
std::vector<MethodRow> own_methods() {
  return {
      {.id = "bf16",
       .summary = "no quantisation: keys and values rounded to BF16",
       .source = "baseline",
       .role = MethodRole::kBaseline,
       .by_default = true,
       .quantised = false},
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
       .fit_summary = "eigenvectors of the target, Hadamard, bit reversal: M = R H P (default)",
       .key_objective = "qqt_r_h_pbr",
       .value_objective = "sst_r_h_pbr",
       .head_objective = "cov_eig_hadamard_perhead",
       .head_id = "oscar-head"},
      {.id = "hadamard",
       .source = "bundle",
       .listed = false,
       .transform = MethodTransform::kHadamard,
       .fit_summary = "Hadamard matrix alone, data-free"},
      {.id = "identity", .source = "bundle", .listed = false, .fit_summary = "no rotation"},
      {.id = "balanced",
       .source = "bundle",
       .listed = false,
       .transform = MethodTransform::kBalanced,
       .fit_summary = "rows and the metric of their errors made equal (not orthogonal), Hadamard; 2-bit codes",
       .takes_widths = true},
      {.id = "waterfill",
       .source = "bundle",
       .listed = false,
       .transform = MethodTransform::kBalanced,
       .fit_summary = "balanced, with block widths that share out --bits over layers, keys, values and blocks",
       .allocates_bits = true,
       .preferred = true},
      // The row "per head + centring" of OSCAR-2's table, with its clips. Its audits keep the first 128 and the last
      // 2,048 tokens in BF16 (--windows 128,2048) and choose codes by thresholds of Lloyd-Max.
      {.id = "oscar2-center",
       .source = "OSCAR-2 (github.com/FutureMLS-Lab/OSCAR)",
       .listed = false,
       .transform = MethodTransform::kEigenvectors,
       .fit_summary = "oscar with a rotation for each KV head and keys less their mean, as OSCAR-2 has it",
       .fit_scope = "head",
       .fit_center = "key",
       .fit_clip = "0.96,0.92"},
  };
}

std::vector<MethodSpec> other_methods() {
  const SideCode fp8 = side(CacheCode::kFloat8, 8, 0);
  SideCode quarot = hadamard(side(CacheCode::kIntegerZero, 2, 0));
  quarot.clip = 0.95;
  return {
      same("fp8", "FP8 E4M3 with scale 1", "OCP FP8 E4M3, vLLM's default scale", fp8),
      same("q8_0", "8 bits, absmax groups of 32", "ggml q8_0", side(CacheCode::kSymmetric8, 8, 32)),
      same("q4_0", "4 bits, signed-extreme groups of 32", "ggml q4_0", side(CacheCode::kSymmetric4, 4, 32)),
      same("q4_0-rot", "q4_0 after a Hadamard rotation of the head",
           "ggml q4_0 with the rotation of llama.cpp pull request 21038",
           hadamard(side(CacheCode::kSymmetric4, 4, 32))),
      {"saw4", "4 bits per token and head, keys after a block-diagonal Hadamard of order 64",
       "SAW-INT4 (arXiv 2604.19157)", hadamard(side(CacheCode::kUniform, 4, 0), 64), side(CacheCode::kUniform, 4, 0),
       0},
      same("quarot2", "2 bits per token and head, Hadamard, range factor 0.95", "QuaRot (arXiv 2404.00456)", quarot),
      kivi("kivi2", 32, 0),
      kivi("kivi2-g128", 128, 0),
      kivi("kivi2-sink", 128, 64),
      kitty(),
      oscar_tns("oscar-tns", 32),
      oscar_tns("oscar-tns-g128", 128),
      kvarn(),
      rotatekv(),
      nsn("nsn", 1),
      nsn("nsn2", 2),
      turboquant("turboquant2", 2, false),
      turboquant("turboquant2.5", 2, true),
      turboquant("turboquant3", 3, false),
      turboquant("turboquant3.5", 3, true),
      turboquant("turboquant4", 4, false),
      vllm_preset("turboquant_k8v4", fp8, 4),
      vllm_preset("turboquant_4bit_nc", vllm_key(4), 4),
      vllm_preset("turboquant_k3v4_nc", vllm_key(3), 4),
      vllm_preset("turboquant_3bit_nc", vllm_key(3), 3),
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
