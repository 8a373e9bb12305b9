#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"

namespace oscar {
namespace {

std::string json_text(const std::string& text, const fs::path& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InputError(path.string() + ": cannot hold the text " + quote_name(text) + ", which is not UTF-8");
  }
}

}  // namespace

void write_safetensors(const fs::path& path, std::vector<TensorView> tensors,
                       const std::map<std::string, std::string>& metadata, bool durable) {
  // Large elements first: keeps every tensor aligned to its element size without gaps, which the format forbids.
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    const std::size_t sa = dtype_size(a.dtype), sb = dtype_size(b.dtype);
    return sa != sb ? sa > sb : a.name < b.name;
  });
  std::vector<std::string_view> names;
  for (const TensorView& t : tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw InputError(path.string() + ": cannot hold two tensors named " + quote_name(*twice));

  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      header += (header.back() == '{' ? "" : ",") + json_text(key, path) + ":" + json_text(value, path);
    }
    header += "}";
  }
  std::uint64_t offset = 0;
  for (const TensorView& t : tensors) {
    const auto bytes = tensor_bytes(t.shape, t.dtype);
    const bool fits = bytes && (*bytes == t.data.size() || t.dtype == DType::kOther);
    if (t.name == "__metadata__" || !fits) {
      throw InputError(path.string() + ": cannot hold the tensor " + quote_name(t.name) + " of shape " +
                       t.shape_text() + " with " + std::to_string(t.data.size()) + " bytes");
    }
    header += (header.size() == 1 ? "" : ",") + json_text(t.name, path) +
              ":{\"dtype\":" + json_text(t.type_text(), path) + ",\"shape\":[";
    for (std::size_t i = 0; i < t.shape.size(); ++i) header += (i == 0 ? "" : ",") + std::to_string(t.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + t.data.size()) + "]}";
    offset += t.data.size();
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');

  AtomicFile file(path);
  const std::uint64_t length = header.size();
  file.write(&length, sizeof length);
  file.write(header);
  std::vector<std::span<const std::byte>> parts;
  for (const TensorView& t : tensors) parts.push_back(t.data);
  file.write(parts);
  file.commit(durable);
}

}  // namespace oscar
