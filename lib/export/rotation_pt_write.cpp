
#include "base/errors.h"
#include "export/rotation_pt.h"
#include "torch_file/torch_pt.h"

namespace oscar {
namespace {

PtValue from_json(const Json& json, const std::string& where) {
  switch (json.type()) {
    case Json::value_t::null:
      return {};
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
        throw InputError(where + ": cannot hold an integer beyond 63 bits");
      }
      return json.get<std::int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      PtList list;
      for (const Json& item : json) list.push_back(from_json(item, where));
      return list;
    }
    case Json::value_t::object: {
      PtDict dict;
      for (const auto& [key, item] : json.items()) dict.emplace_back(key, from_json(item, where));
      return dict;
    }
    default:
      throw InputError(where + ": cannot hold binary JSON");
  }
}

PtTensor tensor_of(const RotationArray& array) { return PtTensor::own(array.shape, array.values); }

void check(const RotationFile& file, const RotationLayer& layer, const std::string& where) {
  const std::string name = where + ": layer " + std::to_string(layer.layer);
  const auto& s = layer.rotation.shape;
  // Version 3 allows both forms.
  const std::size_t rank = file.format_version == 3 && s.size() == 2 ? 2 : (file.format_version == 1 ? 2 : 3);
  if (s.size() != rank || s[rank - 1] != s[rank - 2]) {
    throw InputError(name + " has a rotation of shape " + TensorView{"", DType::kF32, s, {}}.shape_text() +
                     ", format version " + std::to_string(file.format_version) + " needs " +
                     (rank == 2 ? "[d, d]" : "[heads, d, d]"));
  }
  const auto d = static_cast<std::size_t>(layer.head_dim());
  const std::vector<float>& e = layer.eigenvalues.values;
  for (std::size_t i = 0; i < e.size(); ++i) {
    if (i % d != 0 && e[i] < e[i - 1]) throw InputError(name + " has eigenvalues that are not ascending");
  }
}

}  // namespace

void write_rotation_pt(const fs::path& path, const RotationFile& file) {
  const std::string where = path.string();
  if (file.format_version < 1 || file.format_version > 3) {
    throw InputError(where + ": rotation files of format version " + std::to_string(file.format_version) +
                     " are not written, only 1 to 3");
  }
  PtDict layers;
  for (const RotationLayer& layer : file.layers) {
    check(file, layer, where);
    PtDict entry{{"layer_id", layer.layer}, {"rotation", tensor_of(layer.rotation)}};
    if (!layer.eigenvalues.empty()) entry.emplace_back("eigenvalues", tensor_of(layer.eigenvalues));
    for (const auto& [name, array] : {std::pair{"q_rotation", &layer.q_rotation}, std::pair{"k_mean", &layer.k_mean},
                                      std::pair{"o_rotation", &layer.o_rotation}}) {
      if (array->empty()) continue;
      if (file.format_version != 3) {
        throw InputError(where + ": layer " + std::to_string(layer.layer) +
                         " has a mean or a separate query or output side, which format versions 1 and 2 cannot carry");
      }
      entry.emplace_back(name, tensor_of(*array));
    }
    layers.emplace_back(layer.layer, std::move(entry));
  }
  PtDict top{{"format_version", file.format_version},
             {"objective", file.objective},
             {"source_grouping", file.source_grouping},
             {"layers", std::move(layers)}};
  for (const auto& [key, value] : file.extra.items()) {
    if (find_key(top, key) != nullptr) throw InputError(where + ": has the key '" + key + "' twice");
    top.emplace_back(key, from_json(value, where));
  }
  write_torch_pt(path, top);
}

}  // namespace oscar
