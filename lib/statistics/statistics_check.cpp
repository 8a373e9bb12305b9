#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/parallel.h"
#include "statistics/all_finite.h"
#include "statistics/layer_fields.h"
#include "statistics/shard_merge.h"
#include "statistics/statistics.h"
#include "statistics/statistics_format.h"

namespace oscar {
namespace {

// Partial sums are FP32 over short chunks (accumulator.h), so two sums of the same rows agree to about 1e-6.
constexpr double kSlack = 1e-4;

[[noreturn]] void refuse(const std::string& where, const std::string& tensor, const std::string& fault) {
  throw InputError(where + ": tensor '" + tensor + "' " + fault);
}

void check_shape(const at::Tensor& t, at::IntArrayRef shape, at::ScalarType dtype, const std::string& where,
                 const std::string& name) {
  if (!t.defined()) refuse(where, name, "is missing");
  if (t.sizes() != shape) refuse(where, name, "has shape " + shape_text(t.sizes()) + ", expected " + shape_text(shape));
  if (t.scalar_type() != dtype || !t.is_cpu()) {
    refuse(where, name, std::string("is ") + c10::toString(t.scalar_type()) + ", expected " + c10::toString(dtype));
  }
  if (!all_finite(t)) {
    throw NumericalError(where + ": tensor '" + name + "' holds NaN or infinity; collect the statistics again");
  }
}

void check_gram(const at::Tensor& g, const std::string& where, const std::string& name) {
  const double largest = g.abs().max().item<double>();
  if ((g - g.transpose(-1, -2)).abs().max().item<double>() > 1e-9 * largest) refuse(where, name, "is not symmetric");
  const at::Tensor diagonal = g.diagonal(0, -2, -1);
  if (diagonal.min().item<double>() < 0) refuse(where, name, "has a negative diagonal, so it is no second moment");
  // |G_ij| <= sqrt(G_ii G_jj) for every second moment.
  const at::Tensor root = diagonal.sqrt();
  const at::Tensor bound = root.unsqueeze(-1) * root.unsqueeze(-2);
  if ((g.abs() - bound * (1 + kSlack)).max().item<double>() > kSlack * 1e-3 * largest) {
    refuse(where, name, "has entries larger than its diagonal allows, so it is no second moment");
  }
}

// |sum x|^2 <= T sum x^2: fails if the sums or the token count were damaged.
void check_sum(const at::Tensor& sum, const at::Tensor& gram, std::int64_t tokens, const std::string& where,
               const std::string& name) {
  const at::Tensor bound = gram.diagonal(0, -2, -1) * static_cast<double>(tokens);
  const double slack = kSlack * bound.max().item<double>();
  if ((sum.square() - bound * (1 + kSlack)).max().item<double>() > slack) {
    refuse(where, name, "is too large for its gram matrix and the token count");
  }
}

void check_energy(const at::Tensor& t, std::int64_t tokens, const std::string& where, const std::string& name) {
  check_shape(t, {2}, at::kDouble, where, name);
  if (t[0].item<double>() < 0 || t[1].item<double>() != static_cast<double>(tokens)) {
    refuse(where, name, "is not an energy over " + std::to_string(tokens) + " tokens");
  }
}

void check_far_pairs(const Statistics& s, std::size_t i, const std::string& where) {
  const LayerMoments& layer = s.layers[i];
  const std::string prefix = "layers." + std::to_string(s.number(i)) + ".";
  for (const MetricField& field : kFarPairFields) {
    const at::Tensor& t = layer.*field.tensor;
    if (t.defined() != s.layers[0].far_count.defined()) {
      refuse(where, prefix + field.name,
             "is there without the others; the sums of pairs outside the windows come all together or not at all");
    }
    if (!t.defined()) continue;
    if (field.gram) {
      check_shape(t, {s.kv_heads, s.head_dim, s.head_dim}, at::kDouble, where, prefix + field.name);
      check_gram(t, where, prefix + field.name);
      continue;
    }
    check_shape(t, {2}, at::kDouble, where, prefix + field.name);
    const double queries = t[0].item<double>();
    if (t.min().item<double>() < 0 || queries > static_cast<double>(s.tokens) || t[1].item<double>() < queries) {
      refuse(where, prefix + field.name,
             "is no count of far queries and pairs among " + std::to_string(s.tokens) + " tokens");
    }
  }
}

void check_model_facts(const Statistics& s, const std::string& where) {
  const auto positive = [](double value) { return value > 0.0 && value < 1e6; };
  if (!positive(s.attention_scale) || !positive(s.rope_scale) || s.max_position < 0 || s.max_position > kMaxTokens) {
    throw InputError(where + ": impossible facts of the model: attention_scale " + std::to_string(s.attention_scale) +
                     ", rope_scale " + std::to_string(s.rope_scale) + ", max_position " +
                     std::to_string(s.max_position));
  }
  const at::Tensor& f = s.rope_frequency;
  if (!f.defined() || f.dim() != 1 || 2 * f.size(0) > s.head_dim) {
    refuse(where, "rope_frequency", "is not a list of at most " + std::to_string(s.head_dim / 2) + " frequencies");
  }
  check_shape(f, f.sizes(), at::kDouble, where, "rope_frequency");
  if (f.numel() > 0 && f.min().item<double>() < 0.0) refuse(where, "rope_frequency", "has a negative frequency");
}

// Rotating a row keeps its length, so both grams have the same trace, up to the factor of rotated channels.
void check_turned(const at::Tensor& before, const at::Tensor& after, const Statistics& s, const std::string& where,
                  const std::string& name) {
  const std::int64_t turning = 2 * s.rope_frequency.size(0);
  const at::Tensor diagonal = before.diagonal(0, 1, 2);
  const at::Tensor size = diagonal.narrow(1, 0, turning).sum(1) * (s.rope_scale * s.rope_scale) +
                          diagonal.narrow(1, turning, s.head_dim - turning).sum(1);
  const at::Tensor expected = after.diagonal(0, 1, 2).sum(1);
  if (((size - expected).abs() - 1e-3 * expected).max().item<double>() > 0.0) {
    refuse(where, name, "is not of the same rows as its counterpart after RoPE");
  }
}

void check_pre_rope(const Statistics& s, std::size_t i, const std::string& where) {
  const LayerMoments& layer = s.layers[i];
  const std::string prefix = "layers." + std::to_string(s.number(i)) + ".";
  check_sum(layer.pre_k_sum, layer.pre_k_gram, s.tokens, where, prefix + "pre_k_sum");
  check_turned(layer.pre_k_gram, layer.k_gram, s, where, prefix + "pre_k_gram");
  check_turned(layer.pre_q_gram, layer.q_gram, s, where, prefix + "pre_q_gram");
  if (layer.far_q_gram.defined()) {
    check_turned(layer.far_pre_q_gram, layer.far_q_gram, s, where, prefix + "far_pre_q_gram");
  }
}

// Checks attention_residual or attention_gain.
void check_attention_energy(const Statistics& s, std::size_t i, const at::Tensor& t, const std::string& where,
                            const std::string& name) {
  check_shape(t, {2, 2}, at::kDouble, where, name);
  const double far = t[1][1].item<double>(), tokens = static_cast<double>(s.tokens);
  const bool counted = !s.layers[i].far_count.defined() || far >= s.layers[i].far_count[0].item<double>();
  if (t.min().item<double>() < 0 || t[0][1].item<double>() != tokens || far > tokens || !counted) {
    refuse(where, name, "is not an energy over " + std::to_string(s.tokens) + " tokens and the far ones among them");
  }
}

void check_rows(const Statistics& s, std::size_t i, const std::string& where) {
  const LayerMoments& layer = s.layers[i];
  const std::string prefix = "rows." + std::to_string(s.number(i)) + ".";
  const std::vector<std::uint64_t>& priority = layer.row_priority;
  const auto rows = static_cast<std::int64_t>(priority.size());
  if (layer.rows_q.defined() != s.layers[0].rows_q.defined()) refuse(where, prefix + "q", "is missing");
  if (priority != s.layers[0].row_priority || layer.row_position != s.layers[0].row_position) {
    refuse(where, prefix + "q", "samples other tokens than layer " + std::to_string(s.number(0)));
  }
  if (!layer.rows_q.defined()) return;
  if (!std::is_sorted(priority.begin(), priority.end())) refuse(where, "rows.priority", "is not ascending");
  if (rows > s.tokens) refuse(where, "rows.priority", "has more rows than there are tokens");
  if (!layer.row_position.empty() && (static_cast<std::int64_t>(layer.row_position.size()) != rows ||
                                      *std::min_element(layer.row_position.begin(), layer.row_position.end()) < 0)) {
    refuse(where, "rows.position", "does not hold one position for each row");
  }
  for (const RowField& field : kRowFields) {
    check_shape(layer.*field.tensor, {rows, field.query ? s.query_heads : s.kv_heads, s.head_dim}, at::kFloat, where,
                prefix + field.name);
  }
}

void check_layer(const Statistics& s, std::size_t i, const std::string& where) {
  const LayerMoments& layer = s.layers[i];
  const std::string prefix = "layers." + std::to_string(s.number(i)) + ".";
  for (const MomentField& field : kMomentFields) {
    const at::Tensor& t = layer.*field.tensor;
    if (field.gram) {
      check_shape(t, {s.kv_heads, s.head_dim, s.head_dim}, at::kDouble, where, prefix + field.name);
      check_gram(t, where, prefix + field.name);
    } else {
      check_shape(t, {s.kv_heads, s.head_dim}, at::kDouble, where, prefix + field.name);
    }
  }
  check_sum(layer.k_sum, layer.k_gram, s.tokens, where, prefix + "k_sum");
  check_sum(layer.v_sum, layer.v_gram, s.tokens, where, prefix + "v_sum");
  check_far_pairs(s, i, where);
  check_pre_rope(s, i, where);
  check_attention_energy(s, i, layer.attention_residual, where, prefix + "attention_residual");
  if (layer.attention_gain.defined() != s.layers[0].attention_gain.defined()) {
    refuse(where, prefix + "attention_gain", "is in some layers only; collect the statistics again");
  }
  if (layer.attention_gain.defined()) {
    check_attention_energy(s, i, layer.attention_gain, where, prefix + "attention_gain");
  }
  if (layer.residual_energy.defined()) check_energy(layer.residual_energy, s.tokens, where, prefix + "residual_energy");
  check_rows(s, i, where);
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::int64_t Statistics::number(std::size_t place) const {
  auto number = static_cast<std::int64_t>(place);
  for (const LeftOutLayer& other : left_out) number += other.layer <= number ? 1 : 0;
  return number;
}

void check_statistics(const Statistics& s, const std::string& where) {
  const auto in = [](std::int64_t value, std::int64_t limit) { return value >= 1 && value <= limit; };
  if (s.layers.empty() || !in(s.model_layers(), kMaxLayers) || !in(s.kv_heads, kMaxHeads) ||
      !in(s.query_heads, kMaxHeads) || !in(s.head_dim, kMaxHeadDim) || !in(s.hidden, kMaxHidden) ||
      s.query_heads % s.kv_heads != 0) {
    throw InputError(where + ": impossible geometry: " + std::to_string(s.layers.size()) + " layers, " +
                     std::to_string(s.query_heads) + " query heads, " + std::to_string(s.kv_heads) +
                     " KV heads, head_dim " + std::to_string(s.head_dim) + ", hidden " + std::to_string(s.hidden));
  }
  std::int64_t next = 0;
  for (const LeftOutLayer& other : s.left_out) {
    if (other.layer < next || other.layer >= s.model_layers() || other.reason.empty()) {
      throw InputError(where + ": layer " + std::to_string(other.layer) + " is left out of " +
                       std::to_string(s.model_layers()) + " layers, expected ascending numbers, each with a reason");
    }
    next = other.layer + 1;
  }
  const bool empty = s.tokens == 0 && is_shard(s);
  if (!empty && !in(s.tokens, kMaxTokens)) {
    throw InputError(where + ": " + std::to_string(s.tokens) + " tokens is not a count of calibration tokens");
  }
  check_model_facts(s, where);
  if (empty) return;  // an empty shard has no sums
  if (s.embedding_energy.defined()) check_energy(s.embedding_energy, s.tokens, where, "embedding_energy");
  parallel_tasks(std::ssize(s.layers), [&](std::int64_t i) { check_layer(s, static_cast<std::size_t>(i), where); });
}

}  // namespace oscar
