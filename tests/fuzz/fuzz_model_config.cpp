#include "checkpoint/model_config.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

std::vector<std::string> seeds() {
  const std::string sizes = R"("vocab_size":96,"hidden_size":48,"intermediate_size":80,"num_hidden_layers":3,)"
                            R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":4096,)";
  std::vector<std::string> seeds;
  for (const std::string name : {"Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "Mixtral", "Gemma2", "Gemma3",
                                 "GptOss", "Glm4", "Olmo2", "SeedOss", "Granite", "Exaone4", "Cohere2", "Ernie4_5"}) {
    const std::string start = "{\"architectures\":[\"" + name + "ForCausalLM\"]," + sizes;
    seeds.push_back(start +
                    R"("rope_theta":1e6,"rope_scaling":{"type":"linear","factor":2},"bos_token_id":null,)"
                    R"("eos_token_id":[1,2],"attention_bias":true,"mlp_bias":true,"tie_word_embeddings":true})");
    // Gemma 3 has such numbers for each type of layer: its seed stands below.
    if (name != "Gemma3")
      seeds.push_back(start + R"("rope_parameters":{"rope_type":"llama3","rope_theta":5e5,"factor":8,)"
                              R"("low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":512},)"
                              R"("use_sliding_window":true,"sliding_window":64,"max_window_layers":1,"head_dim":16})");
    seeds.push_back(start + R"("rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64,)"
                            R"("mscale":1.0,"mscale_all_dim":0.8,"truncate":false,"beta_fast":32},"sliding_window":9,)"
                            R"("layer_types":["full_attention","sliding_attention","full_attention"],)"
                            R"("use_sliding_window":true,"rms_norm_eps":1e-5,"torch_dtype":"bfloat16"})");
  }
  seeds.push_back("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"text_config\":{" + sizes +
                  R"("rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":{"rope_theta":1e4}},)"
                  R"("sliding_window_pattern":2,"final_logit_softcapping":30},"eos_token_id":[1,106]})");
  seeds.push_back("{\"architectures\":[\"SmolLM3ForCausalLM\"]," + sizes +
                  R"("rope_theta":1e6,"no_rope_layer_interval":2,"attention_bias":true,"mlp_bias":true})");
  seeds.push_back("{\"architectures\":[\"Phi3ForCausalLM\"]," + sizes +
                  R"("rope_theta":1e4,"sliding_window":9,"partial_rotary_factor":0.5,"head_dim":16})");
  seeds.push_back("{\"architectures\":[\"Phi3ForCausalLM\"]," + sizes +
                  R"("head_dim":8,"original_max_position_embeddings":64,"rope_scaling":{"type":"longrope",)"
                  R"("short_factor":[1,1.5,2,3],"long_factor":[1,2.5,4,8]}})");
  seeds.push_back("{\"architectures\":[\"LlamaForCausalLM\"]," + sizes +
                  R"("rope_scaling":{"rope_type":"dynamic","factor":2.0}})");
  seeds.push_back("{\"architectures\":[\"Qwen3MoeForCausalLM\"]," + sizes +
                  R"("num_experts":8,"num_experts_per_tok":2,"mlp_only_layers":[1],"decoder_sparse_step":2})");
  seeds.push_back("{\"architectures\":[\"Olmo3ForCausalLM\"]," + sizes +
                  R"("rope_theta":5e5,"rope_scaling":{"rope_type":"yarn","factor":8},"sliding_window_pattern":2})");
  seeds.push_back("{\"architectures\":[\"HunYuanDenseV1ForCausalLM\"]," + sizes +
                  R"("rope_scaling":{"type":"dynamic","alpha":1000.0},"attention_bias":true})");
  seeds.push_back("{\"architectures\":[\"HunYuanMoEV1ForCausalLM\"]," + sizes + R"("num_experts":8,"moe_topk":[2,2]})");
  seeds.push_back(
      "{\"architectures\":[\"DeepseekV3ForCausalLM\"]," + sizes +
      R"("kv_lora_rank":32,"q_lora_rank":null,"qk_rope_head_dim":16,"qk_nope_head_dim":24,"v_head_dim":20,)"
      R"("n_routed_experts":8,"num_experts_per_tok":2,"n_group":4,"topk_group":2,"first_k_dense_replace":1,)"
      R"("rope_scaling":{"type":"yarn","factor":4.0,"mscale":1.0,"mscale_all_dim":0.8}})");
  seeds.push_back("{\"architectures\":[\"Glm4MoeForCausalLM\"]," + sizes +
                  R"("n_routed_experts":8,"num_experts_per_tok":2,"n_group":4,"topk_group":2,"n_shared_experts":1,)"
                  R"("first_k_dense_replace":1,"routed_scaling_factor":2.5,"use_qk_norm":true,"head_dim":16})");
  seeds.push_back(
      "{\"architectures\":[\"Ernie4_5_MoeForCausalLM\"]," + sizes +
      R"("moe_num_experts":8,"moe_k":2,"moe_num_shared_experts":1,"moe_layer_interval":2,"moe_norm_min":0})");
  seeds.push_back("{\"architectures\":[\"MiniMaxM2ForCausalLM\"]," + sizes +
                  R"("num_local_experts":8,"num_experts_per_tok":2,"rotary_dim":8,"attn_type_list":[1,1,1]})");
  seeds.push_back("{\"architectures\":[\"Qwen3NextForCausalLM\"]," + sizes +
                  R"("full_attention_interval":3,"linear_num_key_heads":2,"linear_num_value_heads":4,)"
                  R"("num_experts":8,"num_experts_per_tok":2,"shared_expert_intermediate_size":9,"head_dim":16})");
  seeds.push_back("{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"text_config\":{" + sizes +
                  R"("layer_types":["linear_attention","full_attention","linear_attention"],"head_dim":16,)"
                  R"("linear_key_head_dim":8,"linear_value_head_dim":16,"linear_conv_kernel_dim":4}})");
  seeds.push_back("{\"architectures\":[\"Gemma4ForCausalLM\"]," + sizes +
                  R"("head_dim":8,"global_head_dim":16,"hidden_size_per_layer_input":0,"enable_moe_block":true,)"
                  R"("num_experts":8,"top_k_experts":2,"moe_intermediate_size":9,"final_logit_softcapping":30.0})");
  seeds.push_back("{\"architectures\":[\"Gemma4ForCausalLM\"]," + sizes +
                  R"("head_dim":8,"hidden_size_per_layer_input":0,"attention_k_eq_v":true,"sliding_window":9,)"
                  R"("layer_types":["sliding_attention","full_attention","sliding_attention"],)"
                  R"("per_layer_config":{"1":{"head_dim":16},"2":{"head_dim":16}}})");
  seeds.push_back(
      "{\"architectures\":[\"Gemma4ForCausalLM\"]," + sizes +
      R"("head_dim":8,"global_head_dim":16,"hidden_size_per_layer_input":4,"vocab_size_per_layer_input":96,)"
      R"("layer_types":["sliding_attention","full_attention","full_attention"],"sliding_window":9,)"
      R"("num_kv_shared_layers":1,"use_double_wide_mlp":true})");
  const std::string quantized = "{\"architectures\":[\"Qwen3ForCausalLM\"]," + sizes + "\"quantization_config\":";
  seeds.push_back(quantized +
                  R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["a"]}})");
  seeds.push_back(quantized +
                  R"({"quant_method":"compressed-tensors","format":"float-quantized","ignore":["re:.*"],)"
                  R"("config_groups":{"x":{"weights":{"block_structure":[64,32]}},"y":{"weights":null}}}})");
  seeds.push_back(quantized + R"({"quant_method":"gptq","checkpoint_format":"gptq_v2","bits":4}})");
  return seeds;
}

void read_input(std::string_view bytes) {
  const ModelConfig c = parse_model_config(parse_json(bytes, "config.json"), "config.json");
  require(c.layers > 0 && c.hidden > 0 && c.kv_heads > 0 && c.head_dim > 0 && c.head_dim % 2 == 0,
          "sizes are positive");
  require(c.query_heads == c.kv_heads * c.gqa_group(), "query heads are a multiple of KV heads");
  require(c.sliding_window.size() == static_cast<std::size_t>(c.layers), "every layer has a window");
  for (const std::int64_t window : c.sliding_window) require(window >= 0, "windows are not negative");
  require(c.weights.block_rows > 0 && c.weights.block_columns > 0, "blocks of weights have a size");
  require(c.layer_rope.empty() || c.layer_rope.size() == static_cast<std::size_t>(c.layers), "each has its RoPE");
  require(c.experts.per_token <= c.experts.count, "no more experts are chosen than there are");
  require(c.experts.groups >= c.experts.groups_chosen && c.experts.groups_chosen > 0, "groups of experts are chosen");
  require(c.experts.count == 0 || c.experts.count % c.experts.groups == 0, "groups are of equal size");
  require(c.experts.shared >= 0 && c.residual_scale > 0.0 && c.logit_scale >= 0.0, "scales are positive");
  require(c.kv_layers() > 0 && c.kv_layers() <= c.layers, "some layer holds a KV cache");
  for (std::int64_t i = 0; i < c.kv_layers(); ++i) require(c.kv_place(c.kv_layer(i)) == i, "layers have a place each");
  require(c.local.layers.empty() || (c.local.head_dim > 0 && c.local.head_dim % 2 == 0 && c.local.kv_heads > 0 &&
                                     c.query_heads % c.local.kv_heads == 0),
          "layers with heads of their own have whole ones");
  for (std::int64_t i = 0; i < c.layers; ++i) require(!c.is_local(i) || c.span(i) > 0, "those layers have windows");
  require(c.linear.layers.empty() || c.linear.value_heads % c.linear.key_heads == 0, "heads of linear layers divide");
  require(c.rope.turning(c.head_dim) % 2 == 0, "channels turn in pairs");
  require(c.rope.theta > 1.0 && c.rope.factor > 0.0 && c.rope.attention_factor > 0.0, "rope numbers are positive");
}

}  // namespace oscar::fuzz
