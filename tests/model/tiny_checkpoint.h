// A random Qwen3-like checkpoint of a few kilobytes, written by the test, with room to damage it.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"

namespace oscar {

inline DType stored_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    case at::kDouble:
      return DType::kF64;
    case at::kFloat8_e4m3fn:
      return DType::kF8E4M3;
    case at::kChar:
      return DType::kI8;
    case at::kInt:
      return DType::kI32;
    case at::kLong:
      return DType::kI64;
    default:
      return DType::kU8;
  }
}

struct TinyCheckpoint {
  Json config = {{"architectures", {"Qwen3ForCausalLM"}},
                 {"model_type", "qwen3"},
                 {"hidden_size", 24},
                 {"intermediate_size", 40},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"vocab_size", 31},
                 {"max_position_embeddings", 512},
                 {"tie_word_embeddings", false}};
  std::map<std::string, at::Tensor> tensors;

  TinyCheckpoint() {
    at::Generator generator = at::detail::createCPUGenerator(7);
    const auto add = [&](const std::string& name, at::IntArrayRef shape) {
      tensors[name] = at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat)).mul_(0.3);
    };
    add("model.embed_tokens.weight", {31, 24});
    add("lm_head.weight", {31, 24});
    add("model.norm.weight", {24});
    for (int layer = 0; layer < 3; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      add(prefix + "input_layernorm.weight", {24});
      add(prefix + "post_attention_layernorm.weight", {24});
      add(prefix + "self_attn.q_proj.weight", {64, 24});
      add(prefix + "self_attn.k_proj.weight", {32, 24});
      add(prefix + "self_attn.v_proj.weight", {32, 24});
      add(prefix + "self_attn.o_proj.weight", {24, 64});
      add(prefix + "self_attn.q_norm.weight", {16});
      add(prefix + "self_attn.k_norm.weight", {16});
      add(prefix + "mlp.gate_proj.weight", {40, 24});
      add(prefix + "mlp.up_proj.weight", {40, 24});
      add(prefix + "mlp.down_proj.weight", {24, 40});
    }
  }

  Checkpoint write(const fs::path& directory) const {
    write_file_atomic(directory / "config.json", dump_json(config));
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors) {
      TensorView view;
      view.name = name;
      view.dtype = stored_type(tensor.scalar_type());
      view.shape = tensor.sizes().vec();
      view.data = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
      views.push_back(std::move(view));
    }
    write_safetensors(directory / "model.safetensors", std::move(views), {});
    return Checkpoint::open({.directory = directory, .name = "tiny", .revision = ""});
  }
};

}  // namespace oscar
