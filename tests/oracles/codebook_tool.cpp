// Helper of the Python oracle of codebooks.
//   codebook_tool BUNDLE MODEL LAYER T FILE -> FILE holds K, then V, [T, Hkv, d] f32, from position 0 on; writes
//   FILE.out
//                                             with what a reader gets back, and bits and bytes as JSON on stdout.
#include <ATen/ATen.h>

#include <cstring>
#include <iostream>

#include "base/files.h"
#include "base/json.h"
#include "cache/kv_method.h"
#include "checkpoint/checkpoint.h"

int main(int argc, char** argv) {
  using namespace oscar;
  if (argc != 6) return 2;
  const Bundle bundle = load_bundle(argv[1]);
  const Checkpoint checkpoint = Checkpoint::open(locate_model(argv[2]));
  const ModelConfig& model = checkpoint.config();
  const KvMethod method = make_method(bundle.method, model, &bundle, bundle.windows);
  const std::string bytes = read_file(argv[5]);
  const char* at = bytes.data();
  std::string out;
  for (const Side side : {Side::kKey, Side::kValue}) {
    at::Tensor x = at::empty({std::stoll(argv[4]), model.kv_heads, model.head_dim});
    std::memcpy(x.mutable_data_ptr<float>(), at, x.nbytes());
    at += x.nbytes();
    const at::Tensor read = method.coder->code(method, std::stoll(argv[3]), side, x, false).rows.contiguous();
    out.append(static_cast<const char*>(read.const_data_ptr()), read.nbytes());
  }
  write_file_atomic(std::string(argv[5]) + ".out", out);
  std::cout << Json{{"bits", method.bits_per_element()},
                    {"codebook_bytes", method.coder->table_bytes(false)},
                    {"allocated", allocated_bytes(method, model, 1000)}}
                   .dump()
            << "\n";
  return 0;
}
