#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "base/errors.h"
#include "statistics/layer_fields.h"
#include "statistics/parallel_tasks.h"
#include "statistics/statistics.h"

namespace oscar {
namespace {

template <typename T>
void require_same(const T& a, const T& b, const std::string& what) {
  if (a == b) return;
  std::string values;
  if constexpr (std::is_arithmetic_v<T>) {
    values = std::to_string(a) + " and " + std::to_string(b);
  } else {
    values = "'" + a + "' and '" + b + "'";
  }
  throw InputError("the statistics are of different models: " + what + " " + values);
}

void require_same_model(const Statistics& a, const Statistics& b) {
  require_same(a.architecture, b.architecture, "architecture");
  require_same(a.model_layers(), b.model_layers(), "layers");
  require_same(a.layers.size(), b.layers.size(), "layers with a KV cache");
  for (std::size_t i = 0; i < a.layers.size(); ++i) require_same(a.number(i), b.number(i), "layer");
  require_same(a.query_heads, b.query_heads, "query heads");
  require_same(a.kv_heads, b.kv_heads, "KV heads");
  require_same(a.head_dim, b.head_dim, "head_dim");
  require_same(a.hidden, b.hidden, "hidden size");
  require_same(a.model_fingerprint, b.model_fingerprint, "fingerprint");
  if (a.rope_frequency.defined() && b.rope_frequency.defined() && !a.rope_frequency.equal(b.rope_frequency)) {
    throw InputError(
        "the statistics have different frequencies of RoPE, which follow from the longest sequence of a run with this "
        "model; collect the prompts in one run, or in runs on the same side of its original length");
  }
  if (a.format_version == b.format_version) return;
  throw InputError("the statistics have different formats, " + std::to_string(a.format_version) + " and " +
                   std::to_string(b.format_version) + ", which hold different sums; collect the older ones again");
}

Json parts_of(const Statistics& s) {
  return s.metadata.is_object() && s.metadata.contains("parts") ? s.metadata["parts"] : Json::array();
}

// The recorded runs of all parts, in an order that does not depend on the order of the arguments.
Json merge_runs(const std::vector<Statistics>& parts, bool allow_same_prompts) {
  std::vector<Json> runs;
  for (const Statistics& part : parts) {
    for (const Json& run : parts_of(part)) runs.push_back(run);
  }
  std::set<std::string> seen;
  for (const Json& run : runs) {
    const std::string sha = run.value("prompts", Json::object()).value("sha256", "");
    if (!sha.empty() && !seen.insert(sha).second && !allow_same_prompts) {
      throw InputError("two of the statistics were collected on the same prompt set (sha256 " + sha.substr(0, 12) +
                       "...), so its tokens would count twice; leave one out, or pass --allow-same-prompts");
    }
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Json& a, const Json& b) { return a.dump() < b.dump(); });
  return Json(runs);
}

// How many rows each part was asked to keep; a part that kept fewer holds all its tokens.
std::int64_t requested_rows(const Statistics& s) {
  const std::int64_t kept = static_cast<std::int64_t>(s.layers[0].row_priority.size());
  if (!s.metadata.is_object() || !s.metadata.contains("rows")) return kept;
  return std::max(kept, s.metadata["rows"].value("requested", kept));
}

struct RowSource {
  std::size_t part;
  std::int64_t row;
};

// The union of bottom-k samples, cut to the smallest k, is the bottom-k sample of all tokens.
std::vector<RowSource> merged_rows(const std::vector<Statistics>& parts, std::int64_t* requested) {
  *requested = requested_rows(parts[0]);
  std::vector<RowSource> rows;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    *requested = std::min(*requested, requested_rows(parts[p]));
    for (std::size_t r = 0; r < parts[p].layers[0].row_priority.size(); ++r) {
      rows.push_back({p, static_cast<std::int64_t>(r)});
    }
  }
  const auto priority = [&](const RowSource& s) { return parts[s.part].layers[0].row_priority[s.row]; };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const RowSource& a, const RowSource& b) { return priority(a) < priority(b); });
  if (static_cast<std::int64_t>(rows.size()) > *requested) rows.resize(*requested);
  return rows;
}

void merge_rows(const std::vector<Statistics>& parts, const std::vector<RowSource>& rows, std::size_t i,
                LayerMoments& out) {
  const bool positions = std::all_of(parts.begin(), parts.end(), [&](const Statistics& s) {
    return s.layers[i].row_position.size() == s.layers[i].row_priority.size();
  });
  for (const RowSource& source : rows) {
    const LayerMoments& from = parts[source.part].layers[i];
    out.row_priority.push_back(from.row_priority[source.row]);
    if (positions) out.row_position.push_back(from.row_position[source.row]);
  }
  for (const RowField& field : kRowFields) {
    std::vector<at::Tensor> picked;
    for (const RowSource& source : rows) picked.push_back((parts[source.part].layers[i].*field.tensor)[source.row]);
    out.*field.tensor = at::stack(picked);
  }
  for (const RowField& field : kRowGradientFields) {
    std::vector<at::Tensor> picked;
    for (const RowSource& source : rows) {
      const at::Tensor& from = parts[source.part].layers[i].*field.tensor;
      if (from.defined()) picked.push_back(from[source.row]);
    }
    if (picked.size() == rows.size() && !rows.empty()) out.*field.tensor = at::stack(picked);
  }
}

// Sum of an optional tensor; undefined when any part lacks it.
at::Tensor sum_optional(const std::vector<Statistics>& parts, const std::function<at::Tensor(const Statistics&)>& get) {
  at::Tensor total = get(parts[0]);
  if (!total.defined()) return total;
  total = total.clone();
  for (std::size_t p = 1; p < parts.size(); ++p) {
    const at::Tensor t = get(parts[p]);
    if (!t.defined()) return {};
    total += t;
  }
  return total;
}

// Sum of an optional tensor over the parts that have it: parts of short prompts have no far pairs.
at::Tensor sum_present(const std::vector<Statistics>& parts, const std::function<at::Tensor(const Statistics&)>& get) {
  at::Tensor total;
  for (const Statistics& part : parts) {
    const at::Tensor t = get(part);
    if (t.defined()) total = total.defined() ? total + t : t.clone();
  }
  return total;
}

// The windows that define far pairs, of every part that has their sums: they must be the same.
void require_same_far_pairs(const std::vector<Statistics>& parts) {
  Json first;
  for (const Statistics& part : parts) {
    if (!part.layers[0].far_count.defined()) continue;
    for (const Json& run : parts_of(part)) {
      const Json windows = run.value("options", Json::object()).value("far_pairs", Json());
      if (windows.is_null()) continue;
      if (first.is_null()) first = windows;
      if (windows != first) {
        throw InputError("the statistics were collected with different --far-pairs: " + first.dump() + " and " +
                         windows.dump());
      }
    }
  }
}

Json option_of(const Json& run, const char* name) {
  const Json options = run.is_object() ? run.value("options", Json::object()) : Json::object();
  return options.is_object() ? options.value(name, Json()) : Json();
}

void require_same_dtype(const std::vector<Statistics>& parts) {
  std::string first;
  for (const Statistics& part : parts) {
    for (const Json& run : parts_of(part)) {
      const Json dtype = option_of(run, "dtype");
      if (!dtype.is_string()) continue;
      if (first.empty()) first = dtype.get<std::string>();
      if (dtype == first) continue;
      throw InputError("the statistics were collected in different precisions: " + first + " and " +
                       dtype.get<std::string>() + "; collect all parts with one --dtype, or pass --allow-mixed-dtypes");
    }
  }
}

// Metrics of some parts only would weigh the tokens of those parts alone. count: the field that tells who has them.
void require_everywhere(const std::vector<Statistics>& parts, at::Tensor LayerMoments::*count, const std::string& what,
                        const std::string& option) {
  const auto has = [count](const Statistics& s) { return (s.layers[0].*count).defined(); };
  if (std::none_of(parts.begin(), parts.end(), has)) return;
  const auto without = std::find_if_not(parts.begin(), parts.end(), has);
  if (without == parts.end()) return;
  throw InputError("part " + std::to_string(without - parts.begin() + 1) + " of " + std::to_string(parts.size()) +
                   " has no " + what +
                   " and others have: these metrics would be of their tokens alone; collect it "
                   "with " +
                   option + " and prompts longer than its windows, or pass --allow-missing-far-pairs");
}

// Rows whose gradients are unknown cannot stand beside others in a weighted codebook: all have them, or none.
void require_row_gradients(const std::vector<Statistics>& parts) {
  const auto has = [](const Statistics& s) { return s.layers[0].rows_v_squared_gradient.defined(); };
  if (std::none_of(parts.begin(), parts.end(), has)) return;
  const auto without = std::find_if_not(parts.begin(), parts.end(), has);
  if (without == parts.end()) return;
  throw InputError("part " + std::to_string(without - parts.begin() + 1) + " of " + std::to_string(parts.size()) +
                   " has no gradients of its sampled rows and others have: collect it with --row-gradients, or pass "
                   "--allow-missing-far-pairs, which drops those of the others");
}

}  // namespace

Statistics merge_statistics(const std::vector<Statistics>& parts, const MergeOptions& options) {
  if (parts.empty()) throw UsageError("merge needs at least one statistics file");
  for (const Statistics& part : parts) require_same_model(parts[0], part);

  if (!options.mixed_dtypes) require_same_dtype(parts);
  if (!options.missing_far_pairs) {
    require_everywhere(parts, &LayerMoments::far_count, "far pairs", "--far-pairs");
    require_everywhere(parts, &LayerMoments::kl_count, "KL metric", "--metric kl");
    require_row_gradients(parts);
  }
  require_same_far_pairs(parts);
  const Statistics& first = parts[0];
  Statistics out;
  out.model_fingerprint = first.model_fingerprint;
  out.model_name = std::min_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
                     return a.model_name < b.model_name;
                   })->model_name;
  out.architecture = first.architecture;
  out.query_heads = first.query_heads;
  out.kv_heads = first.kv_heads;
  out.head_dim = first.head_dim;
  out.hidden = first.hidden;
  out.left_out = first.left_out;
  out.format_version = first.format_version;
  out.rope_frequency = first.rope_frequency;
  out.rope_scale = first.rope_scale;
  out.rope_reach = first.rope_reach;
  out.attention_scale = first.attention_scale;
  out.max_position = first.max_position;
  for (const Statistics& part : parts) out.tokens += part.tokens;
  out.embedding_energy = sum_optional(parts, [](const Statistics& s) { return s.embedding_energy; });

  const bool sampled = std::all_of(parts.begin(), parts.end(), [](const Statistics& s) {
    return s.layers[0].rows_q.defined() && !s.layers[0].row_priority.empty();
  });
  std::int64_t requested = 0;
  const std::vector<RowSource> rows = sampled ? merged_rows(parts, &requested) : std::vector<RowSource>();

  out.metadata = first.metadata.is_object() ? first.metadata : Json::object();
  out.metadata["parts"] = merge_runs(parts, options.same_prompts);
  out.metadata["rows"] = Json{{"requested", requested}, {"kept", rows.size()}};

  out.layers.resize(first.layers.size());
  parallel_tasks(std::ssize(out.layers), [&](std::int64_t at) {
    const auto i = static_cast<std::size_t>(at);
    LayerMoments& layer = out.layers[i];
    for (const MomentField& field : kMomentFields) {
      if (field.since > out.format_version) continue;
      at::Tensor total = (first.layers[i].*field.tensor).clone();
      if (field.tensor != &LayerMoments::wo_gram) {  // a property of the weights, not a sum over tokens
        for (std::size_t p = 1; p < parts.size(); ++p) total += parts[p].layers[i].*field.tensor;
      }
      layer.*field.tensor = total;
    }
    for (const MetricField& field : kFarPairFields) {
      layer.*field.tensor = sum_present(parts, [&](const Statistics& s) { return s.layers[i].*field.tensor; });
    }
    for (const MetricField& field : kKlFields) {
      layer.*field.tensor = sum_present(parts, [&](const Statistics& s) { return s.layers[i].*field.tensor; });
    }
    for (const EnergyField& field : kEnergyFields) {
      layer.*field.tensor = sum_optional(parts, [&](const Statistics& s) { return s.layers[i].*field.tensor; });
    }
    if (sampled) merge_rows(parts, rows, i, layer);
  });
  return out;
}

}  // namespace oscar
