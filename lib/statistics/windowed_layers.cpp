#include "statistics/windowed_layers.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "base/json.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostSpan = std::int64_t{1} << 40;

// The largest number of keys that a query sees.
struct Span {
  std::int64_t tokens = 0;  // 0: all
  const char* of = "a window of ";
};

// Spans by layer number.
std::map<std::int64_t, Span> spans_of(const Statistics& s, const std::string& where) {
  std::map<std::int64_t, Span> spans;
  if (!s.metadata.is_object() || !s.metadata.contains("geometry")) return spans;
  for (const Json& layer : json_array(s.metadata, "geometry", where)) {
    const std::int64_t number = json_int_within(layer, "layer", where + ", geometry", 0, s.model_layers() - 1);
    spans[number].tokens = json_int_within(layer, "sliding_window", where + ", geometry", 0, kMostSpan);
    if (!layer.contains("chunk")) continue;
    if (const std::int64_t chunk = json_int_within(layer, "chunk", where + ", geometry", 0, kMostSpan); chunk > 0) {
      spans[number] = {chunk, "chunks of "};
    }
  }
  return spans;
}

}  // namespace

std::vector<LeftOutLayer> windowed_layers(const Statistics& s, const CacheWindows& windows, const std::string& where) {
  const std::map<std::int64_t, Span> spans = spans_of(s, where);
  std::vector<LeftOutLayer> found;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const auto span = spans.find(s.number(i));
    if (span == spans.end() || !windows.hold(span->second.tokens)) continue;
    const auto& [tokens, of] = span->second;
    longest = std::max(longest, tokens);
    found.push_back({span->first, of + std::to_string(tokens) + " tokens, which stay in BF16", {}});
  }
  if (!found.empty() && found.size() == s.layers.size()) {
    throw InputError(where + ": no layer has anything to quantize: their windows of at most " +
                     std::to_string(longest) + " tokens lie inside the recent window of " +
                     std::to_string(windows.recent) + " tokens in BF16; pass shorter --windows");
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
  for (const LeftOutLayer& layer : s.left_out) all.emplace(layer.layer, layer);
  for (const LeftOutLayer& layer : layers) all.emplace(layer.layer, layer);
  s.layers = std::move(kept);
  s.left_out.clear();
  for (auto& [number, layer] : all) s.left_out.push_back(std::move(layer));
  return s;
}

}  // namespace oscar
