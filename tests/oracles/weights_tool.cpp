// Weights of a checkpoint as the library reads them, for comparison with another implementation.
//   weights_tool MODEL SHAPES OUT: SHAPES is a JSON object, name -> shape; OUT a safetensors file with those weights,
//   F32.
#include <ATen/ATen.h>

#include <iostream>
#include <map>

#include "base/errors.h"
#include "base/json.h"
#include "weights/stored_weight.h"

namespace oscar {
namespace {

void run(const std::string& model, const std::string& shapes, const std::string& out) {
  const Checkpoint checkpoint = Checkpoint::open(locate_model(model));
  std::map<std::string, at::Tensor> weights;
  std::vector<TensorView> views;
  const Json wanted = read_json(shapes);
  for (const auto& [name, shape] : wanted.items()) {
    const StoredWeight stored = find_weight(checkpoint, name, shape.get<std::vector<std::int64_t>>());
    const at::Tensor& weight = weights[name] = load_weight(stored, at::kFloat).contiguous();
    TensorView view{name, DType::kF32, weight.sizes().vec(), {}};
    view.data = {static_cast<const std::byte*>(weight.const_data_ptr()), weight.nbytes()};
    views.push_back(std::move(view));
    std::cout << name << " " << stored.format_name() << "\n";
  }
  write_safetensors(out, std::move(views), {});
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: weights_tool MODEL SHAPES OUT\n";
    return 2;
  }
  try {
    oscar::run(argv[1], argv[2], argv[3]);
  } catch (const oscar::Error& e) {
    std::cerr << e.what() << "\n";
    return static_cast<int>(e.code());
  }
  return 0;
}
