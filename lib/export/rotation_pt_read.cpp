#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "export/rotation_pt.h"
#include "torch_file/torch_pt.h"

namespace oscar {
namespace {

constexpr std::int64_t kNewestVersion = 3, kMaxDim = 4096, kMaxHeads = 1024;
constexpr std::size_t kMaxLayers = 4096, kMaxMetadata = 10000;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;  // of all arrays together, as F32

// Optional arrays of a layer by their published names.
struct Field {
  const char* name;
  RotationArray RotationLayer::*member;
};
constexpr Field kOptional[] = {{"eigenvalues", &RotationLayer::eigenvalues},
                               {"q_rotation", &RotationLayer::q_rotation},
                               {"k_mean", &RotationLayer::k_mean},
                               {"o_rotation", &RotationLayer::o_rotation}};

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Metadata as JSON; a tensor becomes its description.
struct JsonOf {
  const std::string& where;
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(const PtList& list) const {
    Json out = Json::array();
    for (const PtValue& item : list) out.push_back(std::visit(*this, item.data));
    return out;
  }
  Json operator()(const PtDict& dict) const {
    if (dict.size() > kMaxMetadata)
      throw InputError(where + ": its metadata has " + std::to_string(dict.size()) + " keys");
    Json out = Json::object();
    for (const auto& [key, item] : dict) {
      const auto* text = key.as<std::string>();
      out[text != nullptr ? *text : std::to_string(*key.as<std::int64_t>())] = std::visit(*this, item.data);
    }
    return out;
  }
  Json operator()(const PtTensor& tensor) const {
    return std::string("tensor ") + dtype_name(tensor.dtype) + " " + tensor.shape_text();
  }
  Json operator()(const auto& plain) const { return plain; }
};

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  RotationFile file(const PtDict& top) {
    RotationFile out;
    out.format_version = version(top);
    const PtValue* layers = find_key(top, "layers");
    if (layers == nullptr || layers->as<PtDict>() == nullptr) {
      fail("has no dictionary 'layers'; is it a rotation file?");
    }
    out.objective = text(top, "objective");
    out.source_grouping = text(top, "source_grouping");
    if (out.source_grouping.empty()) out.source_grouping = text(top, "grouping");  // the older name
    if (layers->as<PtDict>()->size() > kMaxLayers || top.size() > kMaxMetadata) fail("has too many layers or keys");
    for (const auto& [key, value] : top) {
      const auto* name = key.as<std::string>();
      if (name == nullptr) fail("has a key at the top that is not text");
      const bool known = *name == "format_version" || *name == "layers" || *name == "objective" ||
                         *name == "source_grouping" || *name == "grouping";
      if (!known) out.extra[*name] = std::visit(JsonOf{where_}, value.data);
    }
    for (const auto& [key, value] : *layers->as<PtDict>()) out.layers.push_back(layer(layer_id(key), value));
    finish(&out);
    return out;
  }

  RotationLayer bare(std::int64_t id, const PtTensor& tensor) {
    return {.layer = id, .rotation = matrix(tensor, "layer " + std::to_string(id))};
  }

  void finish(RotationFile* out) const {
    if (out->layers.empty()) fail("has no layers");
    std::sort(out->layers.begin(), out->layers.end(),
              [](const RotationLayer& a, const RotationLayer& b) { return a.layer < b.layer; });
    for (std::size_t i = 1; i < out->layers.size(); ++i) {
      const RotationLayer &a = out->layers[i - 1], &b = out->layers[i];
      if (a.layer == b.layer) fail("has layer " + std::to_string(b.layer) + " twice");
      if (a.rotation.shape.size() != b.rotation.shape.size()) {
        fail("has a rotation for each head in layer " + std::to_string((a.heads() > 0 ? a : b).layer) +
             " but one for all heads in layer " + std::to_string((a.heads() > 0 ? b : a).layer));
      }
      for (const Field& field : kOptional) {
        if ((a.*field.member).empty() != (b.*field.member).empty()) {
          fail(std::string("has '") + field.name + "' in some layers only (layers " + std::to_string(a.layer) +
               " and " + std::to_string(b.layer) + " differ)");
        }
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError(where_ + ": " + what); }

  std::int64_t version(const PtDict& top) const {
    const PtValue* value = find_key(top, "format_version");
    if (value == nullptr) return 1;  // the first files had none
    const auto* number = value->as<std::int64_t>();
    if (number == nullptr || *number < 1) fail("has a 'format_version' that is not a positive integer");
    if (*number > kNewestVersion) {
      fail("has format_version " + std::to_string(*number) + ", newer than the " + std::to_string(kNewestVersion) +
           " this program reads; update it");
    }
    return *number;
  }

  std::string text(const PtDict& dict, const char* key) const {
    const PtValue* value = find_key(dict, key);
    if (value == nullptr || value->as<std::monostate>() != nullptr) return "";
    const auto* text = value->as<std::string>();
    if (text == nullptr) fail(std::string("'") + key + "' is " + value->type_name() + ", expected text");
    return *text;
  }

  std::int64_t layer_id(const PtValue& key) const {
    std::optional<std::int64_t> id;
    if (const auto* number = key.as<std::int64_t>()) id = *number;
    if (const auto* text = key.as<std::string>()) id = whole_number(*text);
    if (!id || *id < 0 || *id > 1'000'000) fail("has a layer whose key is not a layer number");
    return *id;
  }

  RotationLayer layer(std::int64_t id, const PtValue& value) {
    const std::string name = "layer " + std::to_string(id);
    const auto* dict = value.as<PtDict>();
    if (dict == nullptr) fail(name + " is " + value.type_name() + ", expected a dictionary");
    RotationLayer out;
    out.layer = id;
    if (const PtValue* stated = find_key(*dict, "layer_id")) {
      const auto* number = stated->as<std::int64_t>();
      if (number == nullptr || *number != id) fail(name + " states another layer_id");
    }
    const PtValue* rotation = find_key(*dict, "rotation");
    if (rotation == nullptr || rotation->as<PtTensor>() == nullptr) fail(name + " has no tensor 'rotation'");
    out.rotation = matrix(*rotation->as<PtTensor>(), name);
    for (const auto& [key, item] : *dict) {
      const auto* field_name = key.as<std::string>();
      if (field_name == nullptr) fail(name + " has a key that is not text");
      const auto* field = std::find_if(std::begin(kOptional), std::end(kOptional),
                                       [&](const Field& f) { return *field_name == f.name; });
      if (field != std::end(kOptional)) {
        out.*field->member = optional_array(out, *field_name, item, name);
      } else if (*field_name != "rotation" && item.as<PtTensor>() != nullptr) {
        // An unknown tensor may change the meaning of the rotation; plain values cannot.
        fail(name + " has the unknown tensor " + quote_name(*field_name));
      }
    }
    return out;
  }

  RotationArray optional_array(const RotationLayer& layer, const std::string& field, const PtValue& value,
                               const std::string& name) {
    if (value.as<std::monostate>() != nullptr) return {};
    const auto* tensor = value.as<PtTensor>();
    if (tensor == nullptr) fail(name + " has " + value.type_name() + " as '" + field + "', expected a tensor");
    const std::int64_t d = layer.head_dim(), heads = layer.heads();
    const auto& shape = tensor->shape;
    bool fits = shape == layer.rotation.shape;  // q_rotation, o_rotation
    if (field == "eigenvalues") fits = heads > 0 ? shape == std::vector{heads, d} : shape == std::vector{d};
    if (field == "k_mean") {
      fits = shape.size() == 2 && shape[1] == d && shape[0] >= 1 && shape[0] <= kMaxHeads &&
             (heads == 0 || shape[0] == heads);
    }
    if (!fits) {
      fail(name + " has '" + field + "' of shape " + tensor->shape_text() + ", which does not fit its rotation of " +
           TensorView{"", DType::kF32, layer.rotation.shape, {}}.shape_text());
    }
    return array(*tensor, name + " '" + field + "'");
  }

  RotationArray matrix(const PtTensor& tensor, const std::string& name) {
    const auto& s = tensor.shape;
    const bool square = (s.size() == 2 || (s.size() == 3 && s[0] >= 1 && s[0] <= kMaxHeads)) &&
                        s[s.size() - 1] == s[s.size() - 2] && s.back() >= 1 && s.back() <= kMaxDim;
    if (!square) fail(name + " has a rotation of shape " + tensor.shape_text() + ", expected [d, d] or [heads, d, d]");
    return array(tensor, name + " 'rotation'");
  }

  // Copies after checking the size, because many layers may alias one storage.
  RotationArray array(const PtTensor& tensor, const std::string& name) {
    bytes_ += static_cast<std::uint64_t>(tensor.elements()) * sizeof(float);
    if (bytes_ > kMaxBytes) fail("holds more than " + format_bytes(kMaxBytes) + " of rotations");
    if (tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF32 &&
        tensor.dtype != DType::kF64) {
      fail(name + " has elements of " + dtype_name(tensor.dtype) + ", expected floating-point numbers");
    }
    RotationArray out{tensor.shape, tensor.floats()};
    const auto bad = std::find_if(out.values.begin(), out.values.end(), [](float x) { return !std::isfinite(x); });
    if (bad != out.values.end()) {
      fail(name + " holds " + (std::isnan(*bad) ? "NaN" : "infinity") + " at element " +
           std::to_string(bad - out.values.begin()));
    }
    return out;
  }

  const std::string& where_;
  std::uint64_t bytes_ = 0;
};

// layer_<id>.pt -> id.
std::optional<std::int64_t> id_of(const fs::path& path) {
  const std::string stem = path.stem().string();
  if (!stem.starts_with("layer_") || path.extension() != ".pt") return std::nullopt;
  const auto id = whole_number(std::string_view(stem).substr(6));
  return id && *id >= 0 ? id : std::nullopt;
}

RotationFile read_folder(const fs::path& folder) {
  RotationFile out{.objective = "bare", .source_grouping = "layer"};
  const std::string where = folder.string();
  Reader reader(where);
  std::error_code ec;
  std::vector<fs::path> paths;  // sorted, so that the first reported fault does not depend on the file system
  for (auto it = fs::directory_iterator(folder, ec); !ec && it != fs::directory_iterator(); it.increment(ec)) {
    if (id_of(it->path())) paths.push_back(it->path());
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    const PtValue value = read_torch_pt(path);
    const auto* tensor = value.as<PtTensor>();
    if (tensor == nullptr) throw InputError(path.string() + ": holds " + value.type_name() + ", expected one tensor");
    out.layers.push_back(reader.bare(*id_of(path), *tensor));
  }
  if (out.layers.empty()) throw InputError(where + ": has no files named layer_<number>.pt");
  reader.finish(&out);
  return out;
}

}  // namespace

RotationFile parse_rotation_pt(const PtValue& value, const std::string& where) {
  const auto* top = value.as<PtDict>();
  if (top == nullptr) {
    throw InputError(where + ": holds " + value.type_name() + ", expected the dictionary of a rotation file");
  }
  return Reader(where).file(*top);
}

RotationFile read_rotation_pt(const fs::path& path) {
  if (folder_exists(path)) return read_folder(path);
  const PtValue value = read_torch_pt(path);
  const auto* tensor = value.as<PtTensor>();
  if (tensor == nullptr) return parse_rotation_pt(value, path.string());
  const auto id = id_of(path);
  if (!id) throw InputError(path.string() + ": holds one tensor without a layer number; name it layer_<number>.pt");
  RotationFile out{.objective = "bare", .source_grouping = "layer"};
  const std::string where = path.string();
  Reader reader(where);
  out.layers.push_back(reader.bare(*id, *tensor));
  return out;
}

}  // namespace oscar
