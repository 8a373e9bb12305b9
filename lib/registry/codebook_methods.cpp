// Windows are those of the authors' code or experiments: none for CQ, whose tokens are coded before they are read.
#include "registry/codebook_methods.h"

namespace oscar {
namespace {

constexpr CacheWindows kNoWindows{0, 0, 1}, kTasqWindows{0, 64, 1}, kNovaWindows{64, 256, 1},
    kForkWindows{128, 2048, 1};

// CQ (arXiv 2405.03917), "8c10b": `channels` channels coded jointly with so many bits, keys before RoPE, no scale.
CodebookSide coupled(int channels, int bits, bool key) {
  CodebookSide side{.channels = channels, .centroids = 1 << bits};
  side.before_rope = key;
  side.weighted = true;
  return side;
}

MethodRow row_of(std::string id, std::string summary, std::string source, std::string fit_summary,
                 MethodTransform transform, const CodebookSpec& spec) {
  MethodRow row{.id = std::move(id), .summary = std::move(summary), .source = std::move(source)};
  row.transform = transform;
  row.fit_summary = std::move(fit_summary);
  row.codebooks = spec;
  return row;
}

MethodRow cq(int channels, int bits) {
  const std::string code = std::to_string(1 << bits) + " centroids for each " + std::to_string(channels) + " channels";
  return row_of("cq" + std::to_string(channels) + "x" + std::to_string(bits), code + ", keys before RoPE",
                "CQ (arXiv 2405.03917)", "codebooks: " + code + ", keys before RoPE", MethodTransform::kIdentity,
                {coupled(channels, bits, true), coupled(channels, bits, false), kNoWindows});
}

// TaSQ (arXiv 2610.03027): keys of CQ in channels smoothed by what queries make of them, over the token's norm, with
// groups of RoPE pairs that go together; values of CQ.
MethodRow tasq() {
  CodebookSide key = coupled(8, 10, true);
  key.basis = CodebookBasis::kSmoothed;
  key.scale = RowScale::kToken;
  return row_of("tasq", "1024 centroids for each 8 channels, keys before RoPE: weighted, normed, grouped",
                "TaSQ (arXiv 2610.03027)", "codebooks: cq8x10 with keys weighted, normed and grouped",
                MethodTransform::kIdentity, {key, coupled(8, 10, false), kTasqWindows});
}

// NOVA-KV (arXiv 2608.04074): keys in the joint basis of queries and keys, over the norm of each row; values of OSCAR.
// The one-bit form is that of TaSQ's authors (repository mscheong01/TaSQ): 1.375 bits for keys, and for values OSCAR's
// code with two levels, 1.25 bits at head size 128.
MethodRow nova(std::string id, int channels, int centroids, int value_bits) {
  CodebookSide value;
  value.bits = value_bits;
  const std::string values = std::string("; values as oscar") + (value_bits == 1 ? " with two levels" : "");
  CodebookSide key{.channels = channels, .centroids = centroids};
  key.basis = CodebookBasis::kJoint;
  key.scale = RowScale::kHead;
  key.type = CentroidType::kFloat8E5M2;
  const std::string code = std::to_string(centroids) + " centroids for each " + std::to_string(channels) + " channels";
  return row_of(std::move(id), "keys: joint basis of queries and keys, norm, " + code + values,
                "NOVA-KV (arXiv 2608.04074)", "codebooks of keys in the joint basis: " + code + values,
                MethodTransform::kEigenvectors, {key, value, kNovaWindows});
}

// The product and residual codes of OSCAR's fork: keys after its rotation, one codebook for the heads of a layer.
MethodRow product(std::string id, int second) {
  CodebookSide key{.channels = 8, .centroids = 256, .second = second};
  key.shared = true;
  key.basis = CodebookBasis::kRotation;
  const std::string code =
      "256 centroids" + (second > 0 ? " and " + std::to_string(second) + " for what is left" : std::string());
  return row_of(std::move(id), "keys: rotation of oscar, " + code + " for each 8 channels; values as oscar",
                "OSCAR (github.com/FutureMLS-Lab/OSCAR), PQ and RVQ keys",
                "codebooks of keys after the rotation of oscar: " + code + "; values as oscar",
                MethodTransform::kEigenvectors, {key, {}, kForkWindows});
}

}  // namespace

std::vector<MethodRow> codebook_methods() {
  return {cq(8, 10),
          cq(8, 8),
          cq(4, 8),
          tasq(),
          nova("nova", 4, 256, 2),
          nova("nova1b", 8, 1024, 1),
          product("pq1", 0),
          product("rvq1.5", 16)};
}

}  // namespace oscar
