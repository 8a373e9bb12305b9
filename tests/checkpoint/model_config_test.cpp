// Values are compared with transformers in tests/oracles/test_model_config.py; here are known answers and refusals.
#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/message_of.h"

namespace oscar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A small valid config.json of `architecture`, with the members of `changes` (RFC 7396: null removes) merged in.
Json config(const std::string& architecture, const std::string& changes = "{}") {
  Json base = Json::parse(R"({"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
                              "num_attention_heads": 4, "num_key_value_heads": 2})");
  base["architectures"] = {architecture};
  base.merge_patch(Json::parse(changes));
  return base;
}
ModelConfig parse(const std::string& architecture, const std::string& changes = "{}") {
  return parse_model_config(config(architecture, changes), "config.json");
}
std::string refusal(const std::string& changes, const std::string& architecture = "LlamaForCausalLM") {
  return message_of([&] { parse(architecture, changes); });
}

TEST(ModelConfig, FamilyQuirks) {
  const ModelConfig llama = parse("LlamaForCausalLM", R"({"attention_bias": true, "mlp_bias": true})");
  EXPECT_TRUE(llama.qkv_bias && llama.output_bias && llama.mlp_bias);
  EXPECT_EQ(llama.head_dim, 12);
  EXPECT_EQ(llama.gqa_group(), 2);
  EXPECT_THAT(llama.eos_tokens, ElementsAre(2));
  const ModelConfig qwen2 = parse("Qwen2ForCausalLM");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
  EXPECT_THAT(qwen2.sliding_window, ElementsAre(0, 0, 0));
  const ModelConfig qwen3 = parse("Qwen3ForCausalLM");
  EXPECT_TRUE(!qwen3.qkv_bias && qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);  // not hidden / heads
  EXPECT_EQ(qwen3.bos_token, -1);
  EXPECT_THAT(parse("MistralForCausalLM").sliding_window, ElementsAre(4096, 4096, 4096));
}

TEST(ModelConfig, LayersOfSeveralKinds) {
  const ModelConfig gemma2 = parse("Gemma2ForCausalLM");
  EXPECT_THAT(gemma2.sliding_window, ElementsAre(4096, 0, 4096));
  EXPECT_EQ(gemma2.attention_scale, 1.0 / 16.0);
  EXPECT_TRUE(gemma2.logit_soft_cap == 50.0 && gemma2.final_soft_cap == 30.0 && gemma2.tie_embeddings);
  EXPECT_EQ(gemma2.activation, Activation::kGeluTanh);
  const ModelConfig gemma3 = parse("Gemma3ForCausalLM", R"({"sliding_window_pattern": 3, "sliding_window": 9,
      "rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})");
  EXPECT_THAT(gemma3.sliding_window, ElementsAre(9, 9, 0));
  EXPECT_THAT(gemma3.layer_rope, ElementsAre(LayerRope::kLocal, LayerRope::kLocal, LayerRope::kGlobal));
  EXPECT_TRUE(gemma3.rope.theta == 5e5 && gemma3.rope.factor == 8.0 && gemma3.logit_soft_cap == 0.0);
  EXPECT_TRUE(gemma3.local_rope.theta == 2e4 && gemma3.local_rope.type == RopeType::kDefault);
  const ModelConfig smollm3 = parse("SmolLM3ForCausalLM", R"({"no_rope_layer_interval": 2})");
  EXPECT_THAT(smollm3.layer_rope, ElementsAre(LayerRope::kGlobal, LayerRope::kNone, LayerRope::kGlobal));
  const ModelConfig glm4 = parse("Glm4ForCausalLM");
  EXPECT_TRUE(glm4.rope.interleaved && glm4.rope.turning(glm4.head_dim) == 64 && glm4.qkv_bias && !glm4.output_bias);
}

TEST(ModelConfig, LayersWithExperts) {
  const ModelConfig qwen = parse("Qwen3MoeForCausalLM", R"({"mlp_only_layers": [2, 7], "num_experts": 16})");
  EXPECT_THAT(qwen.experts.layers, ElementsAre(true, true, false));
  EXPECT_TRUE(qwen.experts.count == 16 && qwen.experts.per_token == 8 && qwen.experts.intermediate == 768);
  EXPECT_FALSE(qwen.experts.normalized);
  EXPECT_THAT(parse("Qwen3MoeForCausalLM", R"({"decoder_sparse_step": 2})").experts.layers,
              ElementsAre(false, true, false));
  const ModelConfig mixtral = parse("MixtralForCausalLM", R"({"num_local_experts": 4})");
  EXPECT_TRUE(mixtral.experts.count == 4 && mixtral.experts.per_token == 2 && mixtral.experts.intermediate == 80);
  EXPECT_THAT(mixtral.sliding_window, ElementsAre(0, 0, 0));
}

TEST(ModelConfig, Multipliers) {
  const ModelConfig granite = parse("GraniteForCausalLM", R"({"embedding_multiplier": 12, "logits_scaling": 8,
      "residual_multiplier": 0.22, "attention_multiplier": 0.0078125})");
  EXPECT_TRUE(granite.embedding_scale == 12.0 && granite.residual_scale == 0.22 && granite.logit_scale == 0.125);
  EXPECT_EQ(granite.attention_scale, 0.0078125);
  EXPECT_TRUE(parse("GraniteForCausalLM").attention_scale == 1.0 && parse("GraniteForCausalLM").logit_scale == 1.0);
  const ModelConfig cohere = parse("Cohere2ForCausalLM", R"({"layer_norm_eps": 1e-3, "sliding_window_pattern": 2})");
  EXPECT_TRUE(cohere.logit_scale == 0.0625 && cohere.rms_eps == 1e-3 && cohere.rope.interleaved);
  EXPECT_THAT(cohere.sliding_window, ElementsAre(4096, 0, 4096));
  EXPECT_THAT(cohere.layer_rope, ElementsAre(LayerRope::kGlobal, LayerRope::kNone, LayerRope::kGlobal));
}

TEST(ModelConfig, RopeOfAFormOfItsOwn) {
  const ModelConfig hunyuan = parse("HunYuanDenseV1ForCausalLM", R"({"head_dim": 128, "rope_theta": 1e4,
      "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32}})");
  EXPECT_TRUE(hunyuan.norm_after_rope && hunyuan.qk_norm && hunyuan.rope.type == RopeType::kDefault);
  EXPECT_DOUBLE_EQ(hunyuan.rope.theta, 1e4 * std::pow(1000.0, 128.0 / 126.0));
  const ModelConfig olmo3 = parse("Olmo3ForCausalLM", R"({"rope_theta": 3e5, "sliding_window": 9,
      "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}})");
  EXPECT_TRUE(olmo3.rope.type == RopeType::kYarn && olmo3.rope.theta == 3e5);
  EXPECT_TRUE(olmo3.local_rope.type == RopeType::kDefault && olmo3.local_rope.theta == 3e5);
  EXPECT_THAT(olmo3.sliding_window, ElementsAre(9, 9, 9));
  const ModelConfig minimax = parse("MiniMaxM2ForCausalLM", R"({"rotary_dim": 64, "attn_type_list": [1, 1, 1]})");
  EXPECT_TRUE(minimax.rope.turning(minimax.head_dim) == 64 && minimax.rope.theta == 5e6);
  const ModelConfig exaone = parse("Exaone4ForCausalLM", R"({"sliding_window": 9, "sliding_window_pattern": "LLLG",
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})");
  EXPECT_THAT(exaone.layer_rope, ElementsAre(LayerRope::kGlobal, LayerRope::kNone, LayerRope::kGlobal));
  Json full = config("Exaone4ForCausalLM");
  full["sliding_window"] = nullptr;  // RoPE in every layer
  full["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_TRUE(parse_model_config(full, "c").layer_rope.empty());
}

TEST(ModelConfig, RoutersWithCorrections) {
  const ModelConfig glm = parse("Glm4MoeForCausalLM", R"({"n_routed_experts": 16, "num_experts_per_tok": 4,
      "n_group": 8, "topk_group": 2, "n_shared_experts": 2, "moe_intermediate_size": 10, "first_k_dense_replace": 2,
      "routed_scaling_factor": 2.5})");
  EXPECT_THAT(glm.experts.layers, ElementsAre(false, false, true));
  EXPECT_TRUE(glm.experts.count == 16 && glm.experts.groups == 8 && glm.experts.groups_chosen == 2);
  EXPECT_TRUE(glm.experts.shared == 20 && glm.experts.scaling == 2.5 && !glm.qk_norm && !glm.output_bias);
  EXPECT_EQ(glm.rope.partial, 0.5);
  const ModelConfig ernie = parse("Ernie4_5_MoeForCausalLM", R"({"moe_num_experts": 9, "moe_k": 4,
      "moe_num_shared_experts": 0, "moe_layer_end_index": 1})");
  EXPECT_THAT(ernie.experts.layers, ElementsAre(false, true, false));
  EXPECT_TRUE(ernie.experts.count == 9 && ernie.experts.per_token == 4 && ernie.experts.shared == 0);
}

TEST(ModelConfig, LayersOfLinearAttention) {
  const ModelConfig next = parse("Qwen3NextForCausalLM", R"({"num_hidden_layers": 9, "mlp_only_layers": [1],
      "decoder_sparse_step": 2, "shared_expert_intermediate_size": 24, "intermediate_size": null})");
  EXPECT_THAT(next.linear.layers, ElementsAre(true, true, true, false, true, true, true, false, true));
  EXPECT_THAT(next.experts.layers, ElementsAre(false, false, false, true, false, true, false, true, false));
  EXPECT_TRUE(next.linear.key_heads == 16 && next.linear.value_heads == 32 && next.linear.kernel == 4);
  EXPECT_TRUE(next.linear.channels() == 8192 && next.linear.values() == 4096);
  EXPECT_TRUE(next.output_gate && next.experts.normalized && next.experts.shared == 24 && next.intermediate == 5632);
  EXPECT_TRUE(next.rope.turning(next.head_dim) == 64 && next.head_dim == 256);
  EXPECT_TRUE(next.kv_layers() == 2 && next.kv_layer(1) == 7 && next.kv_place(7) == 1);
  const ModelConfig dense = parse("Qwen3_5ForCausalLM", R"({"layer_types": ["full_attention", "linear_attention",
      "full_attention"], "linear_num_key_heads": 3, "linear_num_value_heads": 3, "attention_bias": true})");
  EXPECT_THAT(dense.linear.layers, ElementsAre(false, true, false));
  EXPECT_TRUE(dense.qkv_bias && dense.output_bias && dense.experts.count == 0);
  const ModelConfig moe = parse("Qwen3_5MoeForConditionalGeneration", R"({"model_type": "qwen3_5_moe", "text_config":
      {"num_hidden_layers": 2, "full_attention_interval": 2, "hidden_size": 48, "num_attention_heads": 4,
       "vocab_size": 96, "num_experts": 6, "num_experts_per_tok": 2}})");
  EXPECT_TRUE(moe.text_tower && moe.model_type == "qwen3_5_moe_text" && moe.experts.count == 6);
  EXPECT_THAT(moe.linear.layers, ElementsAre(true, false));
  EXPECT_EQ(parse("Qwen3ForCausalLM").kv_layers(), 3);
}

TEST(ModelConfig, LayersWithHeadsOfTwoSizes) {
  const std::string plain = R"("hidden_size_per_layer_input": 0, "head_dim": 16, "sliding_window": 9, )";
  const ModelConfig gemma = parse("Gemma4ForCausalLM", "{" + plain + R"("num_hidden_layers": 7, "global_head_dim": 32,
      "attention_k_eq_v": true, "num_global_key_value_heads": 1, "use_bidirectional_attention": "vision"})");
  EXPECT_THAT(gemma.local.layers, ElementsAre(true, true, true, true, true, false, false));  // the last one sees all
  EXPECT_TRUE(gemma.local.kv_heads == 2 && gemma.local.head_dim == 16 && gemma.kv_heads == 1 && gemma.head_dim == 32);
  EXPECT_TRUE(gemma.kv_layers() == 2 && gemma.kv_layer(0) == 5 && gemma.kv_place(6) == 1 && !gemma.holds_kv(4));
  EXPECT_TRUE(gemma.head_dim_of(4) == 16 && gemma.head_dim_of(5) == 32 && gemma.kv_heads_of(5) == 1);
  EXPECT_TRUE(gemma.projects_values(4) && !gemma.projects_values(5) && gemma.unit_v_norm);
  EXPECT_TRUE(gemma.rope.type == RopeType::kProportional && gemma.rope.partial == 0.25 &&
              gemma.local_rope.theta == 1e4);
  const std::string two = R"("layer_types": ["sliding_attention", "full_attention", "full_attention"], )";
  const ModelConfig by_layer = parse("Gemma4ForCausalLM", "{" + plain + two + R"("per_layer_config": {
      "1": {"head_dim": 24}, "2": {"head_dim": 24}}})");
  EXPECT_TRUE(by_layer.head_dim == 24 && by_layer.kv_heads == 2 && by_layer.local.head_dim == 16);
  const ModelConfig alike = parse("Gemma4ForCausalLM", "{" + plain + two + R"("global_head_dim": 16})");
  EXPECT_TRUE(alike.local.layers.empty() && alike.kv_layers() == 3);
  const auto refused = [&](const std::string& changes) { return refusal("{" + changes + "}", "Gemma4ForCausalLM"); };
  EXPECT_THAT(refused(plain + R"("use_bidirectional_attention": "all")"), HasSubstr("needs causal attention"));
  EXPECT_THAT(refused(plain + R"("global_head_dim": 15)"), HasSubstr("2 KV heads of 15 channels"));
  EXPECT_THAT(refused(plain + R"("enable_moe_block": true)"), HasSubstr("'num_experts' is missing"));
  const auto by_layers = [&](const std::string& layers) {
    return refused(plain + two + R"("per_layer_config": )" + layers);
  };
  EXPECT_THAT(by_layers(R"({"1": {"head_dim": 24}})"), HasSubstr("layer 1 has heads of another size"));
  EXPECT_THAT(by_layers(R"({"9": {}})"), HasSubstr("holds '9', expected an object for numbers of 3 layers"));
  EXPECT_THAT(by_layers(R"({"1": {"hidden_size": 24}})"), HasSubstr("layer 1 has 'hidden_size' of its own"));
  EXPECT_THAT(by_layers("[1]"), HasSubstr("per_layer_config: is array"));
}

TEST(ModelConfig, LayersThatReadTheCacheOfAnother) {
  const std::string plain = R"("hidden_size_per_layer_input": 0, "head_dim": 16, "global_head_dim": 32, )";
  const std::string types = R"("num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention",
      "sliding_attention", "sliding_attention", "full_attention", "full_attention"], )";
  const ModelConfig c = parse("Gemma4ForCausalLM", "{" + plain + types + R"("num_kv_shared_layers": 3,
      "use_double_wide_mlp": true, "intermediate_size": 40})");
  EXPECT_THAT(c.shared.source, ElementsAre(0, 1, 2, 2, 1, 1));
  EXPECT_THAT(c.shared_layers(), ElementsAre(1, 2));
  EXPECT_TRUE(c.reads_another(3) && !c.reads_another(2) && !c.holds_kv(4) && c.kv_layers() == 1 && c.kv_layer(0) == 1);
  EXPECT_TRUE(c.intermediate_of(2) == 40 && c.intermediate_of(3) == 80);
  EXPECT_EQ(c.state_width(), c.hidden + 2 * 2 * (32 + 16));  // keys and values of two KV heads in both
  EXPECT_EQ(parse("Qwen3ForCausalLM").state_width(), parse("Qwen3ForCausalLM").hidden);
  const auto refused = [&](const std::string& changes) { return refusal("{" + changes + "}", "Gemma4ForCausalLM"); };
  EXPECT_THAT(refused(plain + types + R"("num_kv_shared_layers": 5)"),
              HasSubstr("none of the first 1 layers has keys and values that layer 1, which sees all, could read"));
  EXPECT_THAT(refused(plain + R"("num_kv_shared_layers": 99)"), HasSubstr("'num_kv_shared_layers'"));
  EXPECT_THAT(refused(R"("hidden_size_per_layer_input": 8)"),
              HasSubstr("'vocab_size_per_layer_input' is 262144, expected"));
}

TEST(ModelConfig, GptOssWithoutAWordAboutRope) {
  const ModelConfig c = parse("GptOssForCausalLM");
  EXPECT_THAT(c.sliding_window, ElementsAre(128, 0, 128));
  EXPECT_TRUE(c.sink_logits && c.qkv_bias && c.output_bias && c.experts.intermediate == c.intermediate);
  EXPECT_TRUE(c.rope.type == RopeType::kYarn && c.rope.theta == 150000.0 && !c.rope.truncate);
}

TEST(ModelConfig, TextOfAMultimodalWrapper) {
  const Json whole = Json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
      "eos_token_id": [1, 106], "vision_config": {"hidden_size": 7},
      "text_config": {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
                      "sliding_window": 32}})");
  const ModelConfig c = parse_model_config(whole, "config.json");
  EXPECT_EQ(c.architecture, "Gemma3ForCausalLM");
  EXPECT_TRUE(c.text_tower && c.vocabulary == 262208 && c.query_heads == 8 && c.kv_heads == 4 && c.head_dim == 256);
  EXPECT_THAT(c.eos_tokens, ElementsAre(1, 106));
}

TEST(ModelConfig, ChunksAndQueriesThatAreScaled) {
  const ModelConfig llama = parse("Llama4ForCausalLM", R"({"num_hidden_layers": 4, "attention_chunk_size": 32,
      "interleave_moe_layer_step": 2, "intermediate_size_mlp": 60, "attn_temperature_tuning": 4})");
  EXPECT_THAT(llama.chunk, ElementsAre(32, 32, 32, 0));
  EXPECT_EQ(llama.span(1), 32);
  EXPECT_THAT(llama.layer_rope,
              ElementsAre(LayerRope::kGlobal, LayerRope::kGlobal, LayerRope::kGlobal, LayerRope::kNone));
  EXPECT_THAT(llama.experts.layers, ElementsAre(false, true, false, true));
  EXPECT_TRUE(llama.intermediate == 60 && llama.experts.intermediate == 80 && llama.experts.shared == 80);
  EXPECT_TRUE(llama.unit_qk_norm && llama.rope.interleaved && llama.query_scale.without_rope);
  EXPECT_TRUE(llama.query_scale.beta == 0.1 && llama.query_scale.length == 8192.0);
  const ModelConfig plain = parse("Llama4ForCausalLM", R"({"no_rope_layers": [0, 1, 1], "moe_layers": [],
      "layer_types": ["full_attention", "full_attention", "chunked_attention"], "attn_temperature_tuning": false})");
  EXPECT_THAT(plain.chunk, ElementsAre(0, 0, 8192));
  EXPECT_THAT(plain.experts.layers, ElementsAre(false, false, false));
  EXPECT_EQ(plain.query_scale.length, 0.0);
  Json no_size = config("Llama4ForCausalLM");
  no_size["attention_chunk_size"] = nullptr;
  EXPECT_THAT(message_of([&] { parse_model_config(no_size, "config.json"); }),
              HasSubstr("layer 0 is of type chunked_attention, but attention_chunk_size is null"));
  const ModelConfig ministral = parse("Ministral3ForCausalLM");
  EXPECT_TRUE(ministral.rope.type == RopeType::kYarn && ministral.rope.theta == 1e6 && ministral.rope.factor == 16.0);
  EXPECT_TRUE(ministral.query_scale.beta == 0.1 && ministral.query_scale.length == 16384.0);
}

TEST(ModelConfig, TheTextModelTellsFamiliesOfOneWrapperApart) {
  const auto inside = [](const std::string& type) {
    Json whole = Json::parse(R"({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"})");
    whole["text_config"] = config("", R"({"architectures": null})");
    whole["text_config"]["model_type"] = type;
    if (type.empty()) whole["text_config"].erase("model_type");
    return parse_model_config(whole, "config.json");
  };
  EXPECT_TRUE(inside("mistral").architecture == "MistralForCausalLM" && inside("mistral").text_tower);
  EXPECT_EQ(inside("ministral3").architecture, "Ministral3ForCausalLM");
  EXPECT_EQ(inside("").architecture, "MistralForCausalLM");  // not the file that comes first in the folder
  EXPECT_THAT(
      message_of([&] { inside("pixtral"); }),
      HasSubstr("inside 'Mistral3ForConditionalGeneration' has the model_type 'pixtral', which is not supported"));
}

TEST(ModelConfig, LatentAttentionHasOneHeadOfTheLatent) {
  const Json whole =
      Json::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 96,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 20, "first_k_dense_replace": 2})");
  const ModelConfig found = parse_model_config(whole, "config.json");
  EXPECT_TRUE(found.is_latent() && found.rope.interleaved && found.latent.query_rank == 1536);
  EXPECT_TRUE(found.kv_heads == 1 && found.head_dim == 96 && found.rotary_width() == 16);
  EXPECT_EQ(found.cached_width(), 96 + 16);
  EXPECT_NEAR(found.attention_scale, 1.0 / std::sqrt(40.0), 1e-12);
  EXPECT_EQ(found.experts.layers, (std::vector<bool>{false, false, true}));
  const auto says = [&](const char* change, const char* words) {
    Json changed = whole;
    changed.update(Json::parse(change));
    EXPECT_THAT(message_of([&] { parse_model_config(changed, "config.json"); }), HasSubstr(words));
  };
  says(R"({"qk_rope_head_dim": 15})", "'qk_rope_head_dim' is 15, expected an even number");
  says(R"({"kv_lora_rank": 0})", "'kv_lora_rank' is 0");
  says(R"({"kv_lora_rank": 31})", "'kv_lora_rank' is 31, expected an even number");
  says(R"({"scoring_func": "softmax"})", "'scoring_func' is 'softmax', but only sigmoid is supported");
  says(R"({"moe_layer_freq": 2})", "'moe_layer_freq' is 2");
  says(R"({"model_type": "deepseek_v32"})", "does not belong to the architecture");
  says(R"({"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"})",
       "is not supported; the nearest");
  EXPECT_THAT(refusal("{}", "NewForCausalLM"), HasSubstr("'NewForCausalLM' is not supported; all that are"));
  EXPECT_THAT(refusal("{}", "GPT2LMHeadModel"), HasSubstr("is not supported; all that are"));
}

TEST(ModelConfig, RefusesWhatFamiliesCannotDo) {
  const auto says = [](const char* architecture, const char* change, const char* words) {
    EXPECT_THAT(refusal(change, architecture), HasSubstr(words)) << architecture;
  };
  says("Qwen3MoeForCausalLM", R"({"num_experts": 4})", "'num_experts_per_tok' is 8, but there are 4 experts");
  says("Qwen3MoeForCausalLM", R"({"decoder_sparse_step": 0})", "'decoder_sparse_step' is 0");
  says("Phi3ForCausalLM", R"({"rope_scaling": {"type": "longrope"}})", "'short_factor'");
  says("Phi3ForCausalLM", R"({"rope_scaling": {"type": "yarn", "factor": 2}})", "'short_factor'");
  says("Phi3ForCausalLM", R"({"rope_scaling": {"type": "linear", "factor": 2}})", "'longrope', which are supported");
  says("Qwen3MoeForCausalLM", R"({"mlp_only_layers": "all"})", "'mlp_only_layers' must be a list");
  says("Gemma3ForCausalLM", R"({"use_bidirectional_attention": true})", "'use_bidirectional_attention'");
  says("Gemma3ForCausalLM", R"({"query_pre_attn_scalar": 0})", "'query_pre_attn_scalar' is 0");
  says("Gemma3ForCausalLM", R"({"rope_parameters": {"rope_theta": 1e4}})",
       "neither full_attention nor sliding_attention");
  says("Gemma2ForCausalLM", R"({"attn_logit_softcapping": -1})", "'attn_logit_softcapping' is -1");
  says("SmolLM3ForCausalLM", R"({"no_rope_layers": [1]})", "a list of at least 3 numbers");
  says("SmolLM3ForCausalLM", R"({"use_sliding_window": true, "sliding_window": 8})", "'use_sliding_window'");
  says("Llama4ForCausalLM", R"({"attention_chunk_size": 0})", "'attention_chunk_size' is 0");
  says("Llama4ForCausalLM", R"({"no_rope_layers": [1]})", "'no_rope_layers' must be a list of 3 items");
  says("Llama4ForCausalLM", R"({"layer_types": ["a", "b", "c"]})", "the layer type 'a' is not supported");
  says("Llama4ForCausalLM", R"({"floor_scale": 0})", "'floor_scale' is 0");
  says("Llama4ForCausalLM", R"({"interleave_moe_layer_step": 0})", "'interleave_moe_layer_step' is 0");
  says("Llama4ForCausalLM", R"({"moe_layers": ["x"]})", "'moe_layers' must be a list of layer numbers");
  says("Ministral3ForCausalLM", R"({"rope_parameters": {"rope_type": "default"}})", "'llama_4_scaling_beta'");
  says("Glm4ForCausalLM", R"({"partial_rotary_factor": 1.5})", "'partial_rotary_factor' is 1.5");
  says("GraniteForCausalLM", R"({"logits_scaling": 0})", "'logits_scaling' is 0");
  says("Cohere2ForCausalLM", R"({"logit_scale": -1})", "'logit_scale' is -1");
  says("Cohere2ForCausalLM", R"({"layer_norm_eps": -1})", "'layer_norm_eps' must be");
  says("HunYuanDenseV1ForCausalLM", R"({"rope_scaling": {"type": "dynamic"}})", "'factor'");
  says("HunYuanDenseV1ForCausalLM", R"({"rope_scaling": {"type": "dynamic", "alpha": -2}})", "'alpha' is -2");
  says("HunYuanMoEV1ForCausalLM", R"({"num_experts": 4, "moe_topk": [2, 1, 2]})", "'moe_topk' differs between layers");
  says("HunYuanMoEV1ForCausalLM", R"({"num_experts": []})", "'num_experts' is an empty list");
  says("HunYuanMoEV1ForCausalLM", R"({"moe_topk": 2})", "'moe_topk' is 2, but there are 1 experts");
  says("Glm4MoeForCausalLM", R"({"n_group": 3})", "'n_group' is 3 and 'topk_group' 1, which does not fit 8 of 128");
  says("Glm4MoeForCausalLM", R"({"n_group": 64, "topk_group": 2})", "'n_group' is 64");
  says("Glm4MoeForCausalLM", R"({"n_shared_experts": -1})", "'n_shared_experts' is -1");
  says("Ernie4_5_MoeForCausalLM", R"({"moe_k": 80})", "'moe_k' is 80, but there are 64 experts");
  says("Ernie4_5_MoeForCausalLM", R"({"moe_layer_interval": 0})", "'moe_layer_interval' is 0");
  says("Ernie4_5_MoeForCausalLM", R"({"use_bias": true})", "'use_bias'");
  says("MiniMaxM2ForCausalLM", R"({"attn_type_list": [1, 0]})", "'attn_type_list'");
  says("MiniMaxM2ForCausalLM", R"({"rotary_dim": 4096})", "'rotary_dim' is 4096");
  says("Qwen3NextForCausalLM", "{}", "none of 3 layers has full attention");
  says("Qwen3NextForCausalLM", R"({"layer_types": ["full_attention"]})", "'layer_types' has 1 entries, expected one");
  says("Qwen3NextForCausalLM", R"({"layer_types": ["full_attention", "sliding_attention", 3]})",
       "layer type 'sliding_attention' is not supported for this architecture");
  says("Qwen3_5ForCausalLM", R"({"full_attention_interval": 0})", "'full_attention_interval' is 0");
  says("Qwen3_5ForCausalLM",
       R"({"full_attention_interval": 2, "linear_num_key_heads": 3, "linear_num_value_heads": 4})",
       "'linear_num_value_heads' is 4, expected a multiple of 'linear_num_key_heads', which is 3");
  says("Qwen3_5MoeForCausalLM", R"({"full_attention_interval": 2, "linear_conv_kernel_dim": 0})",
       "'linear_conv_kernel_dim' is 0");
  says("Glm4ForCausalLM", R"({"head_dim": 6, "partial_rotary_factor": 0.5})", "3 of 6 channels");
}

TEST(ModelConfig, UnknownArchitectureNamesTheNearest) {
  const auto nearest = [](const char* name, const char* expected) {
    EXPECT_THAT(refusal("{}", name), HasSubstr(std::string("the nearest supported name is ") + expected));
  };
  nearest("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM");
  nearest("Glm5MoeForCausalLM", "Glm4MoeForCausalLM");
  nearest("Olmo4ForCausalLM", "Olmo2ForCausalLM");
  nearest("Gemma5ForCausalLM", "Gemma2ForCausalLM");
}

TEST(ModelConfig, MistralWithNullWindowIsFullAttention) {
  Json json = config("MistralForCausalLM");
  json["sliding_window"] = nullptr;
  EXPECT_THAT(parse_model_config(json, "c").sliding_window, ElementsAre(0, 0, 0));
}

// As Phi3Config of transformers reads them.
TEST(ModelConfig, OlderNamesOfLongRope) {
  for (const char* name : {"su", "yarn", "longrope"}) {
    Json json = config("Phi3ForCausalLM");
    const auto pairs = parse_model_config(json, "c").rope.turning(parse_model_config(json, "c").head_dim) / 2;
    json["rope_scaling"] = {{"type", name},
                            {"short_factor", std::vector<double>(static_cast<std::size_t>(pairs), 1.0)},
                            {"long_factor", std::vector<double>(static_cast<std::size_t>(pairs), 2.0)}};
    EXPECT_EQ(parse_model_config(json, "c").rope.type, RopeType::kLongRope) << name;
  }
}

// Whoever raises the factor often leaves the old maximum.
TEST(ModelConfig, FactorsRaiseTheServedLength) {
  const auto served = [](const char* architecture, const std::string& rope, std::int64_t most) {
    Json json = config(architecture);
    json["max_position_embeddings"] = most;
    json["rope_scaling"] = parse_json(rope, "rope");
    return parse_model_config(json, "c").max_position;
  };
  const char* yarn = R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})";
  EXPECT_EQ(served("Qwen3ForCausalLM", yarn, 40960), 131072);
  EXPECT_EQ(served("Qwen3ForCausalLM", yarn, 262144), 262144);
  EXPECT_EQ(served("LlamaForCausalLM", R"({"type": "linear", "factor": 4.0})", 4096), 16384);
  EXPECT_EQ(served("LlamaForCausalLM", R"({"type": "dynamic", "factor": 2.0})", 4096), 8192);
  const char* llama = R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192})";
  EXPECT_EQ(served("LlamaForCausalLM", llama, 131072), 131072);
  EXPECT_EQ(served("Gemma3ForCausalLM", R"({"rope_type": "linear", "factor": 8.0})", 131072), 131072);
}

TEST(ModelConfig, YarnTemperature) {
  const RopeConfig rope =
      parse("LlamaForCausalLM",
            R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}})")
          .rope;
  EXPECT_EQ(rope.type, RopeType::kYarn);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(4.0) + 1.0);
  EXPECT_TRUE(rope.truncate);
}

TEST(ModelConfig, RefusesOtherArchitectures) {
  EXPECT_THAT(refusal("{}", "GPT2LMHeadModel"),
              AllOf(HasSubstr("'GPT2LMHeadModel' is not supported"), HasSubstr(supported_architectures())));
  EXPECT_THAT(refusal("{}", "Qwen3ForSequenceClassification"), HasSubstr("not supported"));
  EXPECT_THAT(refusal(R"({"model_type": "qwen3"})"), HasSubstr("model_type 'qwen3' does not belong"));
  EXPECT_THAT(refusal(R"({"architectures": []})"), HasSubstr("'architectures' is missing"));
  EXPECT_EQ(parse("x", R"({"architectures": [], "model_type": "qwen3"})").architecture, "Qwen3ForCausalLM");
  EXPECT_THAT(refusal(R"({"architectures": [3]})"), HasSubstr("must be a list of names"));
  EXPECT_THAT(refusal(R"({"architectures": null})"), HasSubstr("'architectures' is missing"));
  EXPECT_EQ(parse("x", R"({"architectures": null, "model_type": "qwen3"})").architecture, "Qwen3ForCausalLM");
  EXPECT_THAT(message_of([] { parse_model_config(Json::parse("[1]"), "config.json"); }),
              HasSubstr("config.json: is array, expected a JSON object"));
}

TEST(ModelConfig, RefusesImpossibleGeometry) {
  EXPECT_THAT(refusal(R"({"num_key_value_heads": 3})"), HasSubstr("4 query heads are not a multiple of 3"));
  EXPECT_THAT(refusal(R"({"num_key_value_heads": 0})"), HasSubstr("'num_key_value_heads' is 0, expected 1 to"));
  EXPECT_THAT(refusal(R"({"num_attention_heads": 5, "num_key_value_heads": 5})"), HasSubstr("not a multiple of 5"));
  EXPECT_THAT(refusal(R"({"head_dim": 7})"), HasSubstr("head_dim 7 is odd"));
  EXPECT_THAT(refusal(R"({"head_dim": -8})"), HasSubstr("'head_dim' is -8"));
  EXPECT_THAT(refusal(R"({"hidden_size": null})"), HasSubstr("'hidden_size' is missing"));
  EXPECT_THAT(refusal(R"({"hidden_size": "48"})"), HasSubstr("'hidden_size' is string, expected an integer"));
  EXPECT_THAT(refusal(R"({"hidden_size": 1e300})"), HasSubstr("'hidden_size'"));
  EXPECT_THAT(refusal(R"({"num_hidden_layers": 2000000000})"), HasSubstr("'num_hidden_layers' is 2000000000"));
  EXPECT_THAT(refusal(R"({"vocab_size": 18446744073709551615})"), HasSubstr("'vocab_size' is too large"));
  EXPECT_THAT(refusal(R"({"rms_norm_eps": -1})"), HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(refusal(R"({"hidden_act": "gelu"})"), HasSubstr("activation 'gelu' is not supported"));
  EXPECT_THAT(refusal(R"({"bos_token_id": 3000000000})"), HasSubstr("'bos_token_id' is 3000000000"));
  EXPECT_THAT(refusal(R"({"eos_token_id": [1, "x"]})"), HasSubstr("'eos_token_id' is string"));
}

TEST(ModelConfig, RefusesRopeItCannotDo) {
  EXPECT_THAT(refusal(R"({"rope_scaling": {"type": "mrope"}})"), HasSubstr("'mrope' is not supported"));
  EXPECT_THAT(refusal(R"({"rope_scaling": 4})"), HasSubstr("'rope_scaling' is number, expected an object"));
  EXPECT_THAT(refusal(R"({"rope_scaling": {"type": "linear"}})"), HasSubstr("'factor' is missing"));
  EXPECT_THAT(refusal(R"({"rope_scaling": {"type": "linear", "factor": 0}})"), HasSubstr("expected a positive number"));
  EXPECT_THAT(refusal(R"({"rope_theta": -1})"), HasSubstr("'rope_theta'"));
  EXPECT_THAT(refusal(R"({"rope_theta": 1.0})"), HasSubstr("greater than 1"));
  EXPECT_THAT(refusal(R"({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}})"), HasSubstr("by layer type"));
  EXPECT_THAT(refusal(R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                          "high_freq_factor": 4}})"),
              HasSubstr("greater than 'low_freq_factor'"));
  EXPECT_THAT(refusal(R"({"rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 0}})"),
              HasSubstr("expected at least 1"));
}

TEST(ModelConfig, RefusesContradictoryWindows) {
  const std::string types = R"("layer_types": ["full_attention", "sliding_attention", "full_attention"])";
  EXPECT_THAT(refusal("{" + types + "}", "Qwen3ForCausalLM"), HasSubstr("layer 1 is of type sliding_attention"));
  EXPECT_THAT(refusal(R"({"layer_types": ["full_attention"]})", "Qwen3ForCausalLM"),
              HasSubstr("expected one for each of 3 layers"));
  EXPECT_THAT(refusal(R"({"layer_types": ["full_attention", "mamba", 3]})", "Qwen3ForCausalLM"),
              HasSubstr("layer type 'mamba' is not supported"));
  EXPECT_THAT(refusal(R"({"sliding_window": 0})", "MistralForCausalLM"), HasSubstr("'sliding_window' is 0"));
}

// Saved from the model without its head, whose model_type says the rest.
TEST(ModelConfig, ArchitecturesWithoutAHead) {
  EXPECT_EQ(parse("LlamaModel", R"({"model_type": "llama"})").architecture, "LlamaForCausalLM");
  EXPECT_THAT(refusal(R"({"model_type": "llama_bidirectional"})", "LlamaModel"), HasSubstr("'LlamaModel' is not supp"));
  EXPECT_THAT(refusal("{}", "LlamaModel"), HasSubstr("'LlamaModel' is not supported"));
}

TEST(ModelConfig, AttentionIsCausal) {
  EXPECT_THAT(refusal(R"({"is_causal": false})"), HasSubstr("'is_causal' is false"));
  EXPECT_EQ(parse("LlamaForCausalLM", R"({"is_causal": true})").layers, parse("LlamaForCausalLM").layers);
}

TEST(ModelConfig, QuantizedWeights) {
  const auto weights = [](const std::string& quantization) {
    return parse("LlamaForCausalLM", "{\"quantization_config\": " + quantization + "}").weights;
  };
  EXPECT_EQ(parse("LlamaForCausalLM").weights.method, "");
  EXPECT_EQ(weights("null").method, "");
  const WeightConfig plain = weights(R"({"quant_method": "fp8"})");
  EXPECT_EQ(plain.method, "fp8");
  EXPECT_EQ(plain.block_rows, 128);
  EXPECT_EQ(plain.block_columns, 128);
  EXPECT_EQ(weights(R"({"quant_method": "fp8", "weight_block_size": [64, 32]})").block_columns, 32);
  // The key of a group says nothing.
  const WeightConfig grouped =
      weights(R"({"quant_method": "compressed-tensors", "config_groups": {"ANY KEY": {"weights":
      {"block_structure": [16, 8]}}, "group_7": {"weights": {"block_structure": null}}, "group_8": {}}})");
  EXPECT_EQ(grouped.block_rows, 16);
  EXPECT_EQ(grouped.block_columns, 8);
  EXPECT_EQ(weights(R"({"quant_method": "gptq", "checkpoint_format": "gptq"})").zero_point_offset, 1);
  EXPECT_EQ(weights(R"({"quant_method": "gptq", "checkpoint_format": "gptq_v2"})").zero_point_offset, 0);
  EXPECT_EQ(weights(R"({"quant_method": "auto-round"})").zero_point_offset, 1);
  EXPECT_EQ(weights(R"({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"})").zero_point_offset,
            1);
  EXPECT_EQ(weights(R"({"quant_method": "auto-round", "packing_format": "auto_round"})").zero_point_offset, 0);
  // As transformers writes it.
  EXPECT_EQ(weights(R"({"quant_method": "auto-round", "packing_format": "auto_round:gptq"})").zero_point_offset, 1);
  EXPECT_EQ(weights(R"({"quant_method": "auto-round", "packing_format": "auto_round:awq"})").zero_point_offset, 1);
  EXPECT_TRUE(weights(R"({"quant_method": "gptq", "desc_act": true})").act_order);
  EXPECT_FALSE(weights(R"({"quant_method": "gptq", "desc_act": false})").act_order);
  EXPECT_EQ(weights(R"({"quant_method": "awq", "version": "gemm"})").method, "awq");
}

TEST(ModelConfig, QuantizedWeightsThatAreNotRead) {
  const auto says = [](const std::string& quantization, const char* word) {
    EXPECT_THAT(refusal("{\"quantization_config\": " + quantization + "}"), HasSubstr(word)) << quantization;
  };
  says(R"({"quant_method": "bitsandbytes"})",
       "'bitsandbytes' ('quant_method'), which is not read; those that are read: fp8, mxfp8, compressed-tensors, "
       "modelopt, mxfp4, awq, gptq, auto-round");
  says(R"({"quant_method": "auto-round", "packing_format": "auto_round:mine"})",
       "'auto_round:mine', which is not read");
  says(R"({"quant_method": "awq", "version": "gemv_fast"})", "'gemv_fast' lie in another order");
  says(R"({"quant_method": "\u001b[2J"})", "'\\x1b[2J'");
  says("{}", "'quant_method'");
  says("[]", "'quantization_config' is array, expected an object");
  for (const char* block :
       {"[128]", "[0, 128]", "[128, 1.5]", "[128, 1048577]", "\"128x128\"", "[128, 18446744073709551615]"}) {
    says(std::string(R"({"quant_method": "fp8", "weight_block_size": )") + block + "}", "'weight_block_size'");
  }
  says(R"({"quant_method": "compressed-tensors", "config_groups": []})", "'config_groups'");
  says(R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"block_structure": [8, 8]}},
           "b": {"weights": {"block_structure": [8, 9]}}}})",
       "blocks of different sizes");
  says(R"({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}})", "'transform_config'");
}

}  // namespace
}  // namespace oscar
