#include "rotation/codebook_fit.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "registry/registry.h"
#include "rotation/codebook_basis.h"
#include "rotation/codebook_points.h"
#include "rotation/fit.h"
#include "rotation/k_means.h"
#include "rotation/two_level_clip.h"

namespace oscar {
namespace {

const CodebookSide& spec_of(const CodebookSpec& spec, Side side) { return side == Side::kKey ? spec.key : spec.value; }

// Whether the fit of method oscar is needed for a side.
bool rotates(const CodebookSide& side) { return !side.coded() || side.basis == CodebookBasis::kRotation; }

FitOptions rotation_options(const FitOptions& o) {
  FitOptions rotation = o;
  rotation.method = method_with(MethodRole::kReference).id;
  return rotation;
}

std::int64_t tokens_for(const CodebookSide& side, std::int64_t kv_heads, std::int64_t rows_per_centroid) {
  const std::int64_t rows = rows_per_centroid * std::max(side.centroids, side.second);
  return side.shared ? (rows + kv_heads - 1) / kv_heads : rows;
}

void warn_once(std::vector<std::string>& warnings, const std::string& warning) {
  if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end()) warnings.push_back(warning);
}

void require_rows(const Statistics& s, const FitOptions& o, const CodebookSpec& spec, const CodebookSide& side,
                  std::int64_t tokens, std::vector<std::string>& warnings) {
  const std::int64_t least = tokens_for(side, s.kv_heads, kFewestRowsPerCentroid);
  const std::int64_t wanted = codebook_tokens(spec, s.kv_heads);
  if (tokens < least) {
    throw InputError("the statistics hold " + std::to_string(tokens) +
                     " sampled rows of each layer that codebooks can be learned from, and method " + o.method +
                     " needs at least " + std::to_string(least) + " (" + std::to_string(kFewestRowsPerCentroid) +
                     " for each centroid): collect " + std::to_string(wanted) +
                     " tokens or more with oscar-collect --rows " + std::to_string(wanted));
  }
  if (tokens >= tokens_for(side, s.kv_heads, kRowsPerCentroid)) return;
  const bool asked = s.metadata.is_object() && s.metadata.contains("rows") &&
                     s.metadata["rows"].value("requested", std::int64_t{0}) >= wanted;
  warn_once(warnings, "the codebooks are learned from " + std::to_string(tokens) +
                          " sampled rows of each layer; the paper of CQ has " + std::to_string(kRowsPerCentroid) +
                          " for each centroid: " +
                          (o.codebook_rows > 0 && o.codebook_rows < wanted ? "fit with more --rows"
                           : asked                                         ? "collect on more text"
                                   : "collect with --rows " + std::to_string(wanted)));
}

// Codebooks of points. Distances are weighed by channels [Hkv, d] where weights are given.
std::shared_ptr<Codebook> learned(const CodebookSide& spec, const PointSource& points, std::int64_t kv_heads,
                                  const at::Tensor& weights, std::uint64_t seed, c10::Device device) {
  const std::int64_t heads = spec.shared ? 1 : kv_heads;
  auto codebook = std::make_shared<Codebook>();
  codebook->before_rope = spec.before_rope, codebook->scale = spec.scale, codebook->type = spec.type;
  at::Tensor w;
  if (weights.defined()) w = weights.reshape({-1, spec.channels});
  const auto stage = [&](const PointSource& left, std::int64_t centroids) {
    const at::Tensor found = as_centroids(k_means(left, centroids, w, {.seed = seed}, device), spec.type);
    return found.view({heads, -1, centroids, spec.channels});
  };
  codebook->first = stage(points, spec.centroids);
  if (spec.second > 0) codebook->second = stage(ResidualPoints(points, codebook->first, device), spec.second);
  return codebook;
}

// One side of one layer; `transform` is that of method oscar where one is needed.
void learn_side(const Statistics& s, const FitOptions& o, std::size_t layer, Side side, FitResult& result,
                SideTransform& transform) {
  const CodebookSpec& method = *fitted_method(o.method).codebooks;
  const CodebookSide& spec = spec_of(method, side);
  if (!spec.coded()) {
    if (spec.bits == 1) set_two_levels(s, o, layer, side, transform);
    return;
  }
  const CodebookRows rows(s, layer, side, spec.before_rope, method.windows.sink, o.codebook_rows);
  require_rows(s, o, method, spec, rows.count(), result.warnings);
  at::Tensor weights;
  if (spec.basis == CodebookBasis::kRotation) {
    transform.clip = {0.0f};
  } else {
    CodebookBasisFit basis = fit_codebook_basis(s, o, layer, side, spec, rows);
    transform = std::move(basis.transform);
    weights = basis.weights;
  }
  const bool gradients = spec.weighted && rows.has_gradients();
  if (spec.weighted && !gradients) {
    warn_once(result.warnings,
              "the codebooks are weighed by the diagonal of the metric, because the statistics have no gradients of "
              "their rows, which the papers weigh by: collect with --row-gradients");
  }
  const CodebookPoints points(rows, transform, side, spec, gradients, o.row_buffer);
  const std::uint64_t seed = 2 * layer + (side == Side::kKey ? 0 : 1);
  const std::shared_ptr<Codebook> codebook =
      learned(spec, points, s.kv_heads, gradients ? at::Tensor() : weights, seed, o.device);
  if (side == Side::kKey) set_errors(*codebook, points, o.device);
  transform.codebook = codebook;
  result.fit_rows = rows.count();
}

}  // namespace

std::int64_t codebook_tokens(const CodebookSpec& spec, std::int64_t kv_heads) {
  std::int64_t tokens = 0;
  for (const CodebookSide* side : {&spec.key, &spec.value}) {
    if (side->coded()) tokens = std::max(tokens, tokens_for(*side, kv_heads, kRowsPerCentroid));
  }
  return tokens;
}

std::int64_t codebook_steps(const Statistics& s, const FitOptions& o) {
  const CodebookSpec& spec = *fitted_method(o.method).codebooks;
  const bool base = rotates(spec.key) || rotates(spec.value);
  return (base ? fit_steps(s, rotation_options(o)) : 0) + 2 * static_cast<std::int64_t>(s.layers.size());
}

FitResult fit_codebooks(const Statistics& s, const FitOptions& o) {
  const CodebookSpec& spec = *fitted_method(o.method).codebooks;
  for (const CodebookSide* side : {&spec.key, &spec.value}) {
    if (!side->coded() || s.head_dim % side->channels == 0) continue;
    throw UsageError("method " + o.method + " codes groups of " + std::to_string(side->channels) +
                     " channels, which do not divide head_dim " + std::to_string(s.head_dim));
  }
  FitResult result;
  if (rotates(spec.key) || rotates(spec.value)) {
    result = fit(s, rotation_options(o));
  } else {
    for (std::size_t i = 0; i < s.layers.size(); ++i) {
      result.layers.emplace_back().transform = {static_cast<std::int64_t>(i), s.head_dim, s.kv_heads, {}, {}};
    }
  }
  result.metric = used_metric(s, o.metric);
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      LayerTransform& transform = result.layers[layer].transform;
      learn_side(s, o, layer, side, result, side == Side::kKey ? transform.key : transform.value);
      if (o.on_step) o.on_step();
    }
  }
  // What was predicted is of the rotation's 2-bit codes.
  if (spec.key.coded()) result.global_key_clip = 0.0f;
  if (spec.value.coded()) result.global_value_clip = 0.0f;
  result.held_out_rows = 0;
  return result;
}

}  // namespace oscar
