// The decoder's logits on given token ids, for comparison with another implementation.
//   oscar_logits MODEL IDS OUT [--dtype float32|bfloat16|float16] [--device cpu|cuda] [--stream-layers] [--qkvo FILE]
// IDS: one sequence in each line, ids separated by spaces; all lines run as one packed batch. OUT: raw FP32
// [T, vocabulary]. FILE: safetensors with layers.{i}.{q,k,v,o}, F32, as an attention observer sees them.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "base/errors.h"
#include "base/files.h"
#include "model/decoder.h"

namespace oscar {
namespace {

class Recorder : public AttentionObserver {
 public:
  Recorder(Attention& inner, const ModelConfig& config) : AttentionObserver(inner), config_(config) {}

  void write(const std::string& path) {
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors_) {
      TensorView view;
      view.name = name;
      view.dtype = DType::kF32;
      view.shape = tensor.sizes().vec();
      view.data = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
      views.push_back(std::move(view));
    }
    write_safetensors(path, std::move(views), {});
  }

 protected:
  void observe(const AttentionInput& input, const at::Tensor& output) override {
    const auto keep = [&](const char* what, const at::Tensor& tensor) {
      const std::string layer = std::to_string(config_.kv_layer(input.layer));
      tensors_["layers." + layer + "." + what] = tensor.to(at::kCPU, at::kFloat).contiguous();
    };
    keep("q", input.q);
    keep("k", input.k);
    keep("v", input.v);
    keep("o", output);
  }

 private:
  const ModelConfig& config_;
  std::map<std::string, at::Tensor> tensors_;
};

void read_ids(const std::string& path, std::vector<std::int32_t>& ids, SequenceBatch& batch) {
  std::istringstream lines(read_file(path));
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    const std::size_t before = ids.size();
    for (std::int32_t id = 0; words >> id;) ids.push_back(id);
    batch.ids.push_back(static_cast<std::int64_t>(batch.ids.size()));
    batch.lengths.push_back(static_cast<std::int64_t>(ids.size() - before));
    batch.starts.push_back(0);
  }
}

int run(int argc, char** argv) {
  CLI::App app("Logits of given token ids");
  std::string model, ids_path, out, dtype = "float32", device = "cpu", qkvo;
  DecoderOptions options;
  app.add_option("model", model)->required();
  app.add_option("ids", ids_path)->required();
  app.add_option("out", out)->required();
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app.add_option("--device", device);
  app.add_flag("--stream-layers", options.stream_layers);
  app.add_option("--qkvo", qkvo);
  CLI11_PARSE(app, argc, argv);
  options.dtype = dtype == "float32" ? at::kFloat : dtype == "bfloat16" ? at::kBFloat16 : at::kHalf;
  options.device = at::Device(device);

  std::vector<std::int32_t> ids;
  SequenceBatch batch;
  read_ids(ids_path, ids, batch);
  Checkpoint checkpoint = Checkpoint::open(locate_model(model));
  checkpoint.set_run_length(*std::max_element(batch.lengths.begin(), batch.lengths.end()));
  Decoder decoder(checkpoint, options);
  FullAttention attention;
  Recorder recorder(attention, checkpoint.config());
  Attention& seam = qkvo.empty() ? static_cast<Attention&>(attention) : recorder;
  const at::Tensor logits = decoder.logits(decoder.forward(ids, batch, seam)).cpu().contiguous();
  write_file_atomic(out, {static_cast<const char*>(logits.const_data_ptr()), logits.nbytes()});
  if (!qkvo.empty()) recorder.write(qkvo);
  return 0;
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  try {
    return oscar::run(argc, argv);
  } catch (const oscar::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
