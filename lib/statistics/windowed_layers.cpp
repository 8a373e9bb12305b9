#include "statistics/windowed_layers.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "base/json_range.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostSpan = std::int64_t{1} << 40;

// Number of a layer -> its window; 0: full attention.
std::map<std::int64_t, std::int64_t> spans_of(const Statistics& s, const std::string& where) {
  std::map<std::int64_t, std::int64_t> spans;
  if (!s.metadata.is_object() || !s.metadata.contains("geometry")) return spans;
  for (const Json& layer : json_array(s.metadata, "geometry", where)) {
    const std::int64_t number = json_int_within(layer, "layer", where + ", geometry", 0, s.model_layers() - 1);
    spans[number] = json_int_within(layer, "sliding_window", where + ", geometry", 0, kMostSpan);
  }
  return spans;
}

}  // namespace

std::vector<LeftOutLayer> windowed_layers(const Statistics& s, const CacheWindows& windows, const std::string& where) {
  const std::map<std::int64_t, std::int64_t> spans = spans_of(s, where);
  std::vector<LeftOutLayer> found;
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const auto span = spans.find(s.number(i));
    if (span == spans.end() || !windows.hold(span->second)) continue;
    found.push_back({span->first, "a window of " + std::to_string(span->second) + " tokens, which stay in BF16"});
  }
  if (!found.empty() && found.size() == s.layers.size()) {
    throw InputError(where + ": no layer has anything to quantise: their windows of at most " +
                     std::to_string(std::max_element(spans.begin(), spans.end(),
                                                     [](const auto& a, const auto& b) { return a.second < b.second; })
                                        ->second) +
                     " tokens lie inside the recent window of " + std::to_string(windows.recent) +
                     " tokens in BF16; pass shorter --windows");
  }
  return found;
}

Statistics without_layers(Statistics s, const std::vector<LeftOutLayer>& layers) {
  std::vector<LayerMoments> kept;
  const auto leaves = [&](std::int64_t number) {
    return std::any_of(layers.begin(), layers.end(), [&](const LeftOutLayer& l) { return l.layer == number; });
  };
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (!leaves(s.number(i))) kept.push_back(std::move(s.layers[i]));
  }
  std::map<std::int64_t, LeftOutLayer> all;
  for (const auto* list : {&s.left_out, &layers}) {
    for (const LeftOutLayer& layer : *list) all.emplace(layer.layer, layer);
  }
  s.layers = std::move(kept);
  s.left_out.clear();
  for (auto& [number, layer] : all) s.left_out.push_back(std::move(layer));
  return s;
}

}  // namespace oscar
