#include "checkpoint/model_config.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

std::vector<std::string> seeds() {
  return {R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":8192,"hidden_size":192,)"
          R"("intermediate_size":576,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,)"
          R"("head_dim":128,"hidden_act":"silu","max_position_embeddings":8192,"rms_norm_eps":1e-06,)"
          R"("tie_word_embeddings":true,"rope_theta":1000000.0,"rope_scaling":null,"attention_bias":false,)"
          R"("sliding_window":null,"eos_token_id":8189,"torch_dtype":"bfloat16"})",
          R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":128256,"hidden_size":2048,)"
          R"("intermediate_size":8192,"num_hidden_layers":16,"num_attention_heads":32,"num_key_value_heads":8,)"
          R"("max_position_embeddings":131072,"rms_norm_eps":1e-05,"eos_token_id":[1,2],)"
          R"("rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,)"
          R"("original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,"dtype":"bfloat16"})",
          R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","vocab_size":1000,"hidden_size":64,)"
          R"("intermediate_size":128,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,)"
          R"("max_position_embeddings":4096,"rms_norm_eps":1e-06,"use_sliding_window":true,"sliding_window":256,)"
          R"("max_window_layers":1,"rope_parameters":{"rope_type":"yarn","factor":4.0,"rope_theta":10000.0,)"
          R"("original_max_position_embeddings":1024}})"};
}

void read_input(std::string_view bytes) { parse_model_config(parse_json(bytes, "config.json"), "config.json"); }

}  // namespace oscar::fuzz
