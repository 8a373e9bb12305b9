#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/parallel.h"
#include "statistics/shard_merge.h"
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

// The number of rows requested for a part; a part that kept fewer holds all its tokens.
std::int64_t requested_rows(const Statistics& s) {
  const std::int64_t kept = static_cast<std::int64_t>(s.layers[0].row_priority.size());
  if (!s.metadata.is_object() || !s.metadata.contains("rows")) return kept;
  return std::max(kept, s.metadata["rows"].value("requested", kept));
}

// The merged sample has as many rows as the smallest number requested for a part.
std::int64_t requested_of_all(const std::vector<Statistics>& parts) {
  std::int64_t requested = requested_rows(parts[0]);
  for (const Statistics& part : parts) requested = std::min(requested, requested_rows(part));
  return requested;
}

LayerParts layer_of(const std::vector<Statistics>& parts, std::size_t i) {
  LayerParts layers;
  for (const Statistics& part : parts) layers.push_back(&part.layers[i]);
  return layers;
}

// The windows of all parts that have sums of pairs outside the windows must be the same.
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

// Metrics of only some parts would weigh only the tokens of those parts.
void require_far_pairs(const std::vector<Statistics>& parts) {
  const auto has = [](const Statistics& s) { return s.layers[0].far_count.defined(); };
  if (std::none_of(parts.begin(), parts.end(), has)) return;
  const auto without = std::find_if_not(parts.begin(), parts.end(), has);
  if (without == parts.end()) return;
  throw InputError("part " + std::to_string(without - parts.begin() + 1) + " of " + std::to_string(parts.size()) +
                   " has no metrics of pairs outside the windows and others have: the sum would cover only their "
                   "tokens; collect it with "
                   "--far-pairs and prompts longer than its windows, or pass --allow-missing-far-pairs");
}

std::vector<LayerMoments> merge_layers(const std::vector<Statistics>& parts) {
  const bool sampled = std::all_of(parts.begin(), parts.end(), [](const Statistics& s) {
    return s.layers[0].rows_q.defined() && !s.layers[0].row_priority.empty();
  });
  std::vector<RowSource> rows;
  if (sampled) rows = merged_rows(layer_of(parts, 0), requested_of_all(parts));
  std::vector<LayerMoments> layers(parts[0].layers.size());
  parallel_tasks(std::ssize(layers), [&](std::int64_t at) {
    const auto i = static_cast<std::size_t>(at);
    layers[i] = merge_layer(layer_of(parts, i), rows);
  });
  return layers;
}

}  // namespace

Statistics merge_statistics(const std::vector<Statistics>& parts, const MergeOptions& options) {
  if (parts.empty()) throw UsageError("merge needs at least one statistics file");
  for (const Statistics& part : parts) require_same_model(parts[0], part);

  if (!options.mixed_dtypes) require_same_dtype(parts);
  if (!options.missing_far_pairs) require_far_pairs(parts);
  require_same_far_pairs(parts);
  Statistics out = parts[0];
  out.model_name = std::min_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
                     return a.model_name < b.model_name;
                   })->model_name;
  out.tokens = 0;
  for (const Statistics& part : parts) out.tokens += part.tokens;
  std::vector<at::Tensor> energies;
  for (const Statistics& part : parts) energies.push_back(part.embedding_energy);
  out.embedding_energy = sum_if_all(energies);

  std::vector<LayerMoments> layers = merge_layers(parts);
  const std::size_t kept = layers[0].row_priority.size();
  const std::int64_t requested = kept > 0 ? requested_of_all(parts) : 0;
  if (!out.metadata.is_object()) out.metadata = Json::object();
  out.metadata["parts"] = merge_runs(parts, options.same_prompts);
  out.metadata["rows"] = Json{{"requested", requested}, {"kept", kept}};

  out.layers = std::move(layers);
  return out;
}

}  // namespace oscar
