// Loading: every fault of names, shapes and dtypes is one clear sentence.
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <cstring>
#include <span>
#include <vector>

#include "base/errors.h"
#include "model/tiny_checkpoint.h"
#include "support/gpu.h"
#include "support/message_of.h"
#include "support/temp_directory.h"
#include "weights/tensor_view.h"

namespace oscar {
namespace {

std::string fault(const TinyCheckpoint& tiny) {
  const TempDirectory directory;
  const Checkpoint checkpoint = tiny.write(directory.path());
  return message_of<InputError>([&] { Decoder(checkpoint, DecoderOptions{}); });
}

TEST(Weights, MissingTensorIsNamed) {
  for (const char* name : {"model.layers.2.self_attn.k_norm.weight", "model.layers.1.mlp.up_proj.weight",
                           "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}) {
    TinyCheckpoint tiny;
    tiny.tensors.erase(name);
    EXPECT_THAT(fault(tiny), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr("is missing")));
  }
}

TEST(Weights, MissingLayerIsNamed) {
  TinyCheckpoint tiny;
  tiny.config["num_hidden_layers"] = 4;
  EXPECT_THAT(fault(tiny), testing::HasSubstr("model.layers.3."));
}

TEST(Weights, WrongShapeNamesBothShapes) {
  TinyCheckpoint tiny;
  tiny.tensors["model.layers.1.self_attn.v_proj.weight"] = at::zeros({32, 25});
  EXPECT_THAT(fault(tiny), testing::AllOf(testing::HasSubstr("model.layers.1.self_attn.v_proj.weight"),
                                          testing::HasSubstr("[32, 25]"), testing::HasSubstr("[32, 24]")));
  TinyCheckpoint transposed;
  at::Tensor& q = transposed.tensors["model.layers.0.self_attn.q_proj.weight"];
  q = q.t().contiguous();
  EXPECT_THAT(fault(transposed), testing::HasSubstr("[24, 64]"));
}

TEST(Weights, BiasThatWouldBeIgnoredIsRefused) {
  TinyCheckpoint tiny;
  tiny.tensors["model.layers.1.self_attn.k_proj.bias"] = at::zeros({32});
  EXPECT_EQ(fault(tiny), "(no error)");  // zeros change nothing
  tiny.tensors["model.layers.1.self_attn.k_proj.bias"] = at::ones({32});
  EXPECT_THAT(fault(tiny), testing::AllOf(testing::HasSubstr("model.layers.1.self_attn.k_proj.bias"),
                                          testing::HasSubstr("attention_bias")));
  tiny.config["attention_bias"] = true;  // now the others are missing
  EXPECT_THAT(fault(tiny), testing::HasSubstr("model.layers.0.self_attn.q_proj.bias is missing"));
}

TEST(Weights, NormThatWouldBeIgnoredIsRefused) {
  TinyCheckpoint tiny;
  tiny.config["architectures"] = {"LlamaForCausalLM"};
  tiny.config["model_type"] = "llama";
  EXPECT_THAT(fault(tiny), testing::HasSubstr("k_norm"));
}

TEST(Weights, DamagedQuantizedAndIntegerWeightsAreRefused) {
  TinyCheckpoint scaled;
  scaled.tensors["model.layers.0.mlp.down_proj.weight_scale"] = at::ones({1});
  EXPECT_THAT(fault(scaled), testing::HasSubstr("model.layers.0.mlp.down_proj.weight is F32"));
  TinyCheckpoint packed;
  packed.tensors.erase("model.layers.0.self_attn.q_proj.weight");
  packed.tensors["model.layers.0.self_attn.q_proj.qweight"] = at::ones({1});
  EXPECT_THAT(fault(packed), testing::HasSubstr("model.layers.0.self_attn.q_proj.qweight"));
  TinyCheckpoint bytes;
  bytes.tensors["model.norm.weight"] = at::ones({24}, at::kByte);
  EXPECT_THAT(fault(bytes), testing::AllOf(testing::HasSubstr("model.norm.weight"), testing::HasSubstr("U8")));
}

TEST(Weights, QuantizedLayerAndHead) {
  TinyCheckpoint tiny;
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  const at::Tensor codes = tiny.tensors[up].mul(64).to(at::kFloat8_e4m3fn), scale = at::full({1}, 1.0f / 64);
  const at::Tensor head = tiny.tensors["lm_head.weight"].to(at::kFloat8_e4m3fn);
  tiny.tensors[up] = codes;
  tiny.tensors[up + "_scale"] = scale;
  tiny.tensors["lm_head.weight"] = head;
  tiny.tensors["lm_head.weight_scale"] = at::full({1}, 2.0f);
  const TempDirectory directory;
  const Checkpoint checkpoint = tiny.write(directory.path());
  for (const bool stream : {false, true}) {
    Decoder decoder(checkpoint, {.stream_layers = stream});
    EXPECT_TRUE(at::equal(decoder.layer_weights(1).up, codes.to(at::kFloat).div(64)));
    EXPECT_TRUE(at::equal(decoder.logits(at::eye(24)), head.to(at::kFloat).mul(2).t()));
  }
  // What is computed with, whatever the file holds: 24 hidden, 31 rows of two tables, three layers.
  EXPECT_EQ(layer_elements(checkpoint)[1], layer_elements(checkpoint)[0]);
  EXPECT_EQ(layer_elements(checkpoint)[0], 2 * 24 + 2 * 64 * 24 + 2 * 32 * 24 + 2 * 16 + 3 * 40 * 24);
  EXPECT_EQ(decoded_bytes(checkpoint, 2), 2 * (3 * layer_elements(checkpoint)[0] + 2 * 31 * 24 + 24));
}

TEST(Weights, BiasOfAQuantizedModuleMayBeZeros) {
  TinyCheckpoint tiny;
  const std::string module = "model.layers.1.self_attn.q_proj";
  tiny.tensors.erase(module + ".weight");
  tiny.tensors[module + ".qweight"] = at::zeros({3, 64}, at::kInt);  // GPTQ of [64, 24] with 4 bits
  tiny.tensors[module + ".qzeros"] = at::zeros({1, 8}, at::kInt);
  tiny.tensors[module + ".scales"] = at::ones({1, 64}, at::kHalf);
  at::Tensor& bias = tiny.tensors[module + ".bias"] = at::zeros({64}, at::kHalf);
  EXPECT_EQ(fault(tiny), "(no error)");
  bias[63] = 1.0;
  EXPECT_THAT(fault(tiny), testing::AllOf(testing::HasSubstr(module + ".bias"), testing::HasSubstr("would ignore")));
}

TEST(Weights, QuantizedEmbeddingIsRefused) {
  TinyCheckpoint tiny;
  at::Tensor& table = tiny.tensors["model.embed_tokens.weight"];
  table = table.to(at::kFloat8_e4m3fn);
  tiny.tensors["model.embed_tokens.weight_scale"] = at::ones({1});
  EXPECT_THAT(fault(tiny), testing::AllOf(testing::HasSubstr("model.embed_tokens.weight"), testing::HasSubstr("FP8")));
}

TEST(Weights, QuantizedWeightThatWouldBeIgnoredIsRefused) {
  for (const char* name : {"mlp.extra_proj.weight_packed", "mlp.extra_proj.qweight", "mlp.experts.gate_up_proj_blocks",
                           "self_attn.g_proj.weight_scale"}) {
    TinyCheckpoint tiny;
    tiny.tensors[std::string("model.layers.1.") + name] = at::ones({2, 2}, at::kInt);
    EXPECT_THAT(fault(tiny), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr("would ignore")));
  }
}

// Whatever it is called: what is not known to change nothing is refused, beside the head as well.
TEST(Weights, UnknownTensorsAreRefused) {
  for (const char* name : {"model.layers.1.mlp.up_proj.smooth_scale", "model.layers.1.mlp.up_proj.g_idx",
                           "model.layers.1.mlp.up_proj.weight_g_idx", "model.layers.1.mlp.up_proj.scales_2",
                           "model.layers.1.mlp.up_proj.weight_zero_point", "model.layers.1.mlp.up_proj.lora_A.weight",
                           "model.layers.2.anything", "lm_head.bias", "lm_head.in_factors", "model.norm.bias"}) {
    TinyCheckpoint tiny;
    tiny.tensors[name] = at::ones({40});
    EXPECT_THAT(fault(tiny), testing::HasSubstr(name));
  }
}

TEST(Weights, FactorsOfTheInputAreMultipliedIntoTheWeight) {
  TinyCheckpoint tiny;
  const std::string up = "model.layers.1.mlp.up_proj";
  const at::Tensor factors = at::arange(1, 25).to(at::kFloat) / 7;
  const at::Tensor plain = tiny.tensors[up + ".weight"], codes = plain.mul(64).to(at::kFloat8_e4m3fn);
  tiny.tensors[up + ".pre_quant_scale"] = factors;
  tiny.tensors["model.layers.0.mlp.up_proj.weight"] = codes;
  tiny.tensors["model.layers.0.mlp.up_proj.weight_scale"] = at::full({1}, 0.5f);
  tiny.tensors["model.layers.0.mlp.up_proj.pre_quant_scale"] = factors.to(at::kBFloat16).view({1, 24});
  const TempDirectory directory;
  const Checkpoint checkpoint = tiny.write(directory.path());
  Decoder decoder(checkpoint, {});
  EXPECT_TRUE(at::equal(decoder.layer_weights(1).up, plain * factors));
  EXPECT_TRUE(
      at::equal(decoder.layer_weights(0).up, codes.to(at::kFloat) * 0.5f * factors.to(at::kBFloat16).to(at::kFloat)));
  tiny.tensors[up + ".pre_quant_scale"] = at::ones({40});
  EXPECT_THAT(fault(tiny), testing::AllOf(testing::HasSubstr(up + ".pre_quant_scale"), testing::HasSubstr("[24]")));
  tiny.tensors[up + ".pre_quant_scale"] = at::full({24}, std::numeric_limits<float>::infinity());
  EXPECT_THAT(fault(tiny), testing::HasSubstr("NaN or infinite"));
}

TEST(Weights, BuffersThatMeanNothingAreAllowed) {
  TinyCheckpoint tiny;
  tiny.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({8});
  for (const char* name : {"self_attn.k_scale", "self_attn.v_proj.output_scale", "mlp.up_proj.input_scale",
                           "mlp.experts.gate_up_proj_input_scale", "mlp.up_proj.input_global_scale",
                           "self_attn.k_zero_point", "self_attn.v_proj.v_zero_point", "self_attn.q_global_scale",
                           "self_attn.kv_zero_point", "self_attn.k_proj.output_global_scale", "self_attn.v_scale_inv",
                           "self_attn.k_cache.scale", "self_attn.q.scale"}) {
    tiny.tensors[std::string("model.layers.0.") + name] = at::ones({1});
  }
  const TempDirectory directory;
  const Checkpoint checkpoint = tiny.write(directory.path());
  EXPECT_NO_THROW(Decoder(checkpoint, DecoderOptions{}));
  for (const char* name : {"self_attn.k_proj.weight_zero_point", "self_attn.risk_scale", "self_attn.k_norm.scale"}) {
    TinyCheckpoint other;
    other.tensors[std::string("model.layers.0.") + name] = at::ones({1});
    EXPECT_THAT(fault(other), testing::HasSubstr(name)) << "it means something";
  }
}

TEST(Weights, TiedHeadIsTheEmbedding) {
  TinyCheckpoint tiny;
  tiny.config["tie_word_embeddings"] = true;
  const at::Tensor head = tiny.tensors["lm_head.weight"];
  const auto names = [&] {
    const TempDirectory directory;
    const Checkpoint checkpoint = tiny.write(directory.path());
    const OuterViews views = find_outer_weights(checkpoint, family_of(checkpoint.config()));
    return views.embedding->name + " " + views.head.codes->name;
  };
  EXPECT_EQ(names(), "model.embed_tokens.weight lm_head.weight");  // both saved: each for itself
  tiny.tensors.erase("lm_head.weight");
  EXPECT_EQ(names(), "model.embed_tokens.weight model.embed_tokens.weight");
  tiny.tensors["lm_head.weight"] = head;
  tiny.tensors.erase("model.embed_tokens.weight");
  EXPECT_EQ(names(), "lm_head.weight lm_head.weight");
  tiny.tensors.erase("lm_head.weight");
  EXPECT_THAT(fault(tiny), testing::HasSubstr("model.embed_tokens.weight is missing"));
}

TEST(Weights, EveryStoredTypeConverts) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    TinyCheckpoint tiny;
    at::Tensor& table = tiny.tensors["model.embed_tokens.weight"];
    at::Tensor& up = tiny.tensors["model.layers.1.mlp.up_proj.weight"];
    table = table.to(type);
    up = up.to(type);
    const TempDirectory directory;
    const Checkpoint checkpoint = tiny.write(directory.path());
    for (const auto wanted : {at::kFloat, at::kBFloat16}) {
      Decoder decoder(checkpoint, {.dtype = wanted});
      EXPECT_TRUE(at::equal(decoder.layer_weights(1).up, up.to(wanted)));
      EXPECT_TRUE(at::equal(decoder.embed({30, 0, 30}), table.index_select(0, at::tensor({30, 0, 30})).to(wanted)));
    }
  }
}

TEST(ToTensor, UnalignedBytesAreCopied) {
  const std::vector<float> values = {1.5f, -2.0f, 3.25f};
  std::vector<std::byte> buffer(13);
  std::memcpy(buffer.data() + 1, values.data(), 12);
  TensorView view{.name = "x", .dtype = DType::kF32, .shape = {3}, .data = {buffer.data() + 1, 12}};
  const at::Tensor tensor = to_tensor(view, at::kFloat);
  std::fill(buffer.begin(), buffer.end(), std::byte{0});
  EXPECT_TRUE(at::equal(tensor, at::tensor({1.5f, -2.0f, 3.25f})));
}

// Several pieces for several threads, the last one short, from an odd address.
void expect_copied(std::int64_t count, at::Device device) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(2 * count + 1));
  std::uint32_t state = 1;
  for (std::byte& byte : buffer) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  const TensorView view{.name = "x", .dtype = DType::kI16, .shape = {count}, .data = std::span(buffer).subspan(1)};
  const at::Tensor tensor = stored_tensor(view, device).cpu();
  ASSERT_EQ(tensor.nbytes(), buffer.size() - 1);
  EXPECT_EQ(std::memcmp(tensor.const_data_ptr(), buffer.data() + 1, tensor.nbytes()), 0);
}

TEST(ToTensor, LargeTensorsAreCopiedWhole) { expect_copied((std::int64_t{3} << 19) + 5, at::kCPU); }

TEST(ToTensor, LargeTensorsAreCopiedWholeToTheGpu) {
  OSCAR_NEEDS_GPU();
  expect_copied((std::int64_t{80} << 19) + 5, at::Device(at::kCUDA, 0));  // 80 MiB: three pieces of pinned memory
}

TEST(ToTensor, UnusableTypeIsNamed) {
  TensorView view{.name = "x", .dtype = DType::kF8E4M3, .shape = {0}, .data = {}};
  EXPECT_THAT(message_of<InputError>([&] { to_tensor(view, at::kFloat); }), testing::HasSubstr("F8_E4M3"));
}

}  // namespace
}  // namespace oscar
