#include "checkpoint/model_config.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

std::vector<std::string> seeds() {
  const std::string sizes = R"("vocab_size":96,"hidden_size":48,"intermediate_size":80,"num_hidden_layers":3,)"
                            R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":4096,)";
  std::vector<std::string> seeds;
  for (const std::string name : {"Llama", "Mistral", "Qwen2", "Qwen3"}) {
    const std::string start = "{\"architectures\":[\"" + name + "ForCausalLM\"]," + sizes;
    seeds.push_back(start +
                    R"("rope_theta":1e6,"rope_scaling":{"type":"linear","factor":2},"bos_token_id":null,)"
                    R"("eos_token_id":[1,2],"attention_bias":true,"mlp_bias":true,"tie_word_embeddings":true})");
    seeds.push_back(start + R"("rope_parameters":{"rope_type":"llama3","rope_theta":5e5,"factor":8,)"
                            R"("low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":512},)"
                            R"("use_sliding_window":true,"sliding_window":64,"max_window_layers":1,"head_dim":16})");
    seeds.push_back(start + R"("rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64,)"
                            R"("mscale":1.0,"mscale_all_dim":0.8,"truncate":false,"beta_fast":32},"sliding_window":9,)"
                            R"("layer_types":["full_attention","sliding_attention","full_attention"],)"
                            R"("use_sliding_window":true,"rms_norm_eps":1e-5,"torch_dtype":"bfloat16"})");
  }
  return seeds;
}

void read_input(std::string_view bytes) {
  const ModelConfig c = parse_model_config(parse_json(bytes, "config.json"), "config.json");
  require(c.layers > 0 && c.hidden > 0 && c.kv_heads > 0 && c.head_dim > 0 && c.head_dim % 2 == 0,
          "sizes are positive");
  require(c.query_heads == c.kv_heads * c.group_size(), "query heads are a multiple of KV heads");
  require(c.sliding_window.size() == static_cast<std::size_t>(c.layers), "every layer has a window");
  for (const std::int64_t window : c.sliding_window) require(window >= 0, "windows are not negative");
  require(c.rope.theta > 1.0 && c.rope.factor > 0.0 && c.rope.attention_factor > 0.0, "rope numbers are positive");
}

}  // namespace oscar::fuzz
