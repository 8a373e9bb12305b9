// Helper of the Python oracle of lib/methods.
//   methods_tool list                      -> JSON array of ids
//   methods_tool code ID T H D FILE        -> FILE holds K, then V, [T, H, D] f32; writes FILE.out with what a reader
//   gets
//                                             back, and bits and windows as JSON on stdout. RoPE: theta 10000, default.
//   methods_tool random N PART FILE        -> writes the random rotation [N, N] f64; PART 0 or 1
#include <ATen/ATen.h>

#include <cstring>
#include <iostream>

#include "base/files.h"
#include "base/json.h"
#include "methods/engine.h"
#include "registry/registry.h"

namespace oscar {
namespace {

void write_tensor(const at::Tensor& x, std::string& bytes) {
  const at::Tensor c = x.contiguous();
  bytes.append(static_cast<const char*>(c.const_data_ptr()), c.nbytes());
}

int code(const std::string& id, std::int64_t tokens, std::int64_t heads, std::int64_t d, const std::string& file) {
  ModelConfig model;
  model.layers = 8, model.query_heads = heads, model.kv_heads = heads, model.head_dim = d;
  model.max_position = 65536, model.rope.theta = 10000.0;
  const MethodEngine engine(*find_method_spec(id), model);
  const std::string bytes = read_file(file);
  std::string out;
  const char* at = bytes.data();
  Json json;
  for (const Side side : {Side::kKey, Side::kValue}) {
    at::Tensor x = at::empty({tokens, heads, d});
    std::memcpy(x.mutable_data_ptr<float>(), at, x.nbytes());
    at += x.nbytes();
    write_tensor(engine.reconstruct(side, x), out);
    const SideCode& s = engine.side(side);
    json[side == Side::kKey ? "key" : "value"] = {{"sink", s.windows.sink},
                                                  {"recent", s.windows.recent},
                                                  {"flush", s.windows.flush},
                                                  {"end", s.windows.quantized_end(tokens)},
                                                  {"bits", bits_per_element(s, static_cast<int>(d))}};
  }
  json["bytes"] = engine.allocated_bytes(tokens);
  write_file_atomic(file + ".out", out);
  std::cout << json.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  using namespace oscar;
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "list") {
    Json ids = Json::array();
    for (const MethodRow& row : method_registry()) {
      if (row.description) ids.push_back(row.id);
    }
    std::cout << ids.dump() << "\n";
    return 0;
  }
  if (mode == "code" && argc == 7)
    return code(argv[2], std::stoll(argv[3]), std::stoll(argv[4]), std::stoll(argv[5]), argv[6]);
  if (mode == "random" && argc == 5) {
    std::string bytes;
    write_tensor(random_orthogonal(std::stoll(argv[2]), kRotationSeed + std::stoull(argv[3])), bytes);
    write_file_atomic(argv[4], bytes);
    return 0;
  }
  return 2;
}
