// What lib/torch_file and lib/export read of torch.save files, as text for the Python oracles. torch_pt_tool with
// - dump FILE: the value as JSON, dictionaries as lists of pairs, tensors by type, shape and sha256
// - copy FILE OUT: reads a file and writes it again
// - check FILE...: "ok" or "refused: <reason>" for each file
// - rotation FILE: a rotation file as JSON
// - rewrite FILE OUT: reads a rotation file and writes it again
#include <iostream>
#include <string>

#include "base/hash.h"
#include "base/json.h"
#include "export/rotation_pt.h"
#include "tool_main.h"
#include "torch_file/torch_pt.h"

namespace oscar {
namespace {

struct ToJson {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(const PtList& list) const {
    Json out = Json::array();
    for (const PtValue& item : list) out.push_back(std::visit(*this, item.data));
    return out;
  }
  Json operator()(const PtDict& dict) const {
    Json out = Json::array();
    for (const auto& [key, value] : dict) {
      out.push_back(Json::array({std::visit(*this, key.data), std::visit(*this, value.data)}));
    }
    return Json{{"dict", out}};
  }
  Json operator()(const PtTensor& t) const {
    Sha256 hash;
    const auto bytes = t.bytes();
    hash.update(bytes.data(), bytes.size());
    return Json{{"tensor", dtype_name(t.dtype)}, {"shape", t.shape}, {"sha256", hash.hex()}};
  }
  template <typename T>
  Json operator()(const T& plain) const {
    return plain;
  }
};

Json array_json(const RotationArray& a) { return a.empty() ? Json() : ToJson()(PtTensor::own(a.shape, a.values)); }

Json rotation_json(const RotationFile& file) {
  Json layers = Json::array();
  for (const RotationLayer& l : file.layers) {
    layers.push_back(Json{{"layer", l.layer},
                          {"rotation", array_json(l.rotation)},
                          {"eigenvalues", array_json(l.eigenvalues)},
                          {"q_rotation", array_json(l.q_rotation)},
                          {"k_mean", array_json(l.k_mean)},
                          {"o_rotation", array_json(l.o_rotation)}});
  }
  return Json{{"format_version", file.format_version},
              {"objective", file.objective},
              {"source_grouping", file.source_grouping},
              {"layers", layers},
              {"extra", file.extra}};
}

int run(const Arguments& args) {
  const std::string command = args.empty() ? "" : args[0];
  if (command == "dump" && args.size() == 2) {
    std::cout << std::visit(ToJson(), read_torch_pt(args[1]).data).dump() << "\n";
  } else if (command == "copy" && args.size() == 3) {
    write_torch_pt(args[2], read_torch_pt(args[1]));
  } else if (command == "rotation" && args.size() == 2) {
    std::cout << rotation_json(read_rotation_pt(args[1])).dump() << "\n";
  } else if (command == "rewrite" && args.size() == 3) {
    write_rotation_pt(args[2], read_rotation_pt(args[1]));
  } else if (command == "check") {
    print_each(args, [](const std::string& file) {
      read_torch_pt(file);
      return "ok";
    });
  } else {
    std::cerr << "usage: torch_pt_tool dump|copy|check|rotation|rewrite ...\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::tool_main(argc, argv, oscar::run); }
