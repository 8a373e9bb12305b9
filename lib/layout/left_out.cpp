#include "layout/left_out.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"

namespace oscar {
namespace {

constexpr std::size_t kShownReason = 80;  // bytes

}  // namespace

LeftOutLayer reads_another(std::int64_t layer, std::int64_t source) {
  return {layer, "reads the keys and values of layer " + std::to_string(source) + ", no cache of its own", source};
}

Json left_out_json(const std::vector<LeftOutLayer>& layers) {
  Json list = Json::array();
  for (const LeftOutLayer& other : layers) {
    list.push_back({{"layer", other.layer}, {"reason", other.reason}});
    if (other.reads) list.back()["reads"] = *other.reads;
  }
  return list;
}

std::vector<LeftOutLayer> read_left_out(const Json& model, std::int64_t layers, const std::string& where) {
  std::vector<LeftOutLayer> others;
  if (!model.contains("left_out")) return others;
  for (const Json& entry : json_array(model, "left_out", where)) {
    const std::int64_t least = others.empty() ? 0 : others.back().layer + 1;
    const std::int64_t layer = json_int_within(entry, "layer", where + ", left_out", least, layers - 1);
    const std::string reason = json_string(entry, "reason", where + ", left_out");
    if (reason.empty()) {
      throw InputError(where + ": layer " + std::to_string(layer) + " is left out without a reason, expected one");
    }
    others.push_back({layer, reason, {}});
    if (entry.contains("reads"))
      others.back().reads = json_int_within(entry, "reads", where + ", left_out", 0, layer - 1);
  }
  if (static_cast<std::int64_t>(others.size()) >= layers) {
    throw InputError(where + ": 'left_out' has all " + std::to_string(layers) + " layers, expected fewer");
  }
  return others;
}

std::string left_out_text(const std::vector<LeftOutLayer>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    const std::string& reason = layers[i].reason;
    std::string numbers;
    std::size_t count = 0;
    while (i < layers.size() && layers[i].reason == reason) {
      const std::int64_t first = layers[i].layer;
      std::int64_t last = first;
      for (++i, ++count; i < layers.size() && layers[i].layer == last + 1 && layers[i].reason == reason; ++i, ++count) {
        ++last;
      }
      numbers += (numbers.empty() ? "" : ", ") + std::to_string(first);
      if (last > first) numbers += (last == first + 1 ? ", " : " to ") + std::to_string(last);
    }
    text += (text.empty() ? "" : "; ") + std::string(count == 1 ? "layer " : "layers ") + numbers + " (" +
            printable(reason, kShownReason) + ")";
  }
  return text;
}

}  // namespace oscar
