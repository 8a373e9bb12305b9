#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <utility>

#include "checkpoint/shard_index.h"
#include "support/message_of.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 8,
  "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1})";

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(i * 7);
    write_file_atomic(dir_ / "config.json", kConfig);
  }
  TensorView tensor(const std::string& name, std::size_t bytes, std::size_t offset = 0) const {
    return {name, DType::kU8, {static_cast<std::int64_t>(bytes)}, std::span(data_).subspan(offset, bytes)};
  }
  void write(const std::string& file, const std::vector<TensorView>& tensors) const {
    write_safetensors(dir_ / file, tensors, {});
  }
  void write_index(const std::string& weight_map) const {
    write_file_atomic(
        dir_ / "model.safetensors.index.json",
        R"({"metadata": {"total_size": 30, "x": [1, {"weight_map": 2}]}, "weight_map": )" + weight_map + "}");
  }
  Checkpoint open() const { return Checkpoint::open({dir_.path(), "test", ""}); }
  std::string refusal() const {
    return message_of([&] { open(); });
  }

  TempDirectory dir_;
  std::vector<std::byte> data_ = std::vector<std::byte>(40000);
};

TEST_F(CheckpointTest, SingleFile) {
  write("model.safetensors", {tensor("b", 3), tensor("a", 20000)});
  const Checkpoint c = open();
  EXPECT_THAT(c.names(), ElementsAre("a", "b"));
  EXPECT_EQ(c.weight_bytes(), 20003u);
  EXPECT_EQ(c.at("b").data[2], data_[2]);
  EXPECT_EQ(c.find("c"), nullptr);
  EXPECT_THAT(message_of([&] { c.at("c"); }), AllOf(HasSubstr("'c' is missing"), HasSubstr("Qwen2ForCausalLM")));
  EXPECT_EQ(c.config().qkv_bias, true);
}

TEST_F(CheckpointTest, ShardsMeanTheSameAsOneFile) {
  write("model.safetensors", {tensor("a", 10), tensor("b", 20), tensor("c", 30000)});
  const std::string whole = open().fingerprint();
  fs::remove(dir_ / "model.safetensors");
  write("model-1.safetensors", {tensor("c", 30000)});
  write("model-2.safetensors", {tensor("a", 10), tensor("b", 20)});
  write_index(R"({"a": "model-2.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"})");
  Checkpoint shards = open();
  EXPECT_EQ(shards.fingerprint(), whole);
  EXPECT_THAT(shards.names(), ElementsAre("a", "b", "c"));
  const Checkpoint moved = std::move(shards);  // the table points into the shards, which move along
  EXPECT_EQ(moved.at("b").data.size(), 20u);
  EXPECT_EQ(moved.fingerprint(), whole);
}

// Seconds, where a search through all keys for each takes a minute, and many with sanitizers.
TEST_F(CheckpointTest, ManyUnreadKeysTakeSeconds) {
  std::string keys;
  for (int i = 0; i < 200'000; ++i) keys += "\"k" + std::to_string(i) + "\": 0,";
  for (const char* before : {"{", R"({"text_config": {)"}) {
    const std::string rest = std::string(kConfig).substr(1);
    write_file_atomic(dir_ / "config.json", before + keys + (before[1] == '\0' ? rest : "\"z\": 0}," + rest));
    write("model.safetensors", {tensor("a", 10)});
    const std::clock_t begin = std::clock();
    open();
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 25.0) << before;
  }
}

// What the shards hold counts, as in transformers: an index may name what they lack, and lack what they hold.
TEST_F(CheckpointTest, TheIndexIsNoList) {
  write("model.safetensors", {tensor("a", 10), tensor("b", 20), tensor("not.in.the.index", 5)});
  const std::string whole = open().fingerprint();
  fs::remove(dir_ / "model.safetensors");
  write("model-1.safetensors", {tensor("b", 20), tensor("not.in.the.index", 5)});
  write("model-2.safetensors", {tensor("a", 10)});
  write_index(R"({"a": "model-2.safetensors", "b": "model-2.safetensors", "mtp.x": "model-1.safetensors"})");
  const Checkpoint c = open();
  EXPECT_THAT(c.names(), ElementsAre("a", "b", "not.in.the.index"));
  EXPECT_EQ(c.fingerprint(), whole);
  EXPECT_THAT(message_of([&] { c.at("mtp.x"); }), HasSubstr("'mtp.x' is missing"));
  write("model-2.safetensors", {tensor("a", 10), tensor("b", 20)});  // the same bytes
  EXPECT_EQ(open().fingerprint(), whole);
  write("model-2.safetensors", {tensor("a", 10), tensor("b", 20, 1)});
  EXPECT_THAT(refusal(), HasSubstr("two shards hold the tensor 'b' with different numbers"));
}

TEST_F(CheckpointTest, NamesWithoutThePrefix) {
  write("model.safetensors", {tensor("layers.0.a", 10), tensor("embed_tokens.weight", 4), tensor("lm_head.weight", 7)});
  const Checkpoint c = open();
  EXPECT_THAT(c.names(), ElementsAre("lm_head.weight", "model.embed_tokens.weight", "model.layers.0.a"));
  EXPECT_EQ(c.at("model.layers.0.a").data.size(), 10u);
  EXPECT_EQ(c.at("model.layers.0.a").name, "model.layers.0.a");
  EXPECT_EQ(c.stored_name("model.layers.0.a"), "layers.0.a");
  EXPECT_EQ(c.stored_name("lm_head.weight"), "lm_head.weight");
  write("model.safetensors",
        {tensor("layers.0.a", 10), tensor("embed_tokens.weight", 4), tensor("model.layers.0.a", 7)});
  EXPECT_THAT(refusal(), HasSubstr("twice, with the prefix 'model.' and without it"));
  // The same if the embedding has the prefix: transformers reads one of them, and which is chance.
  write("model.safetensors",
        {tensor("layers.0.a", 10), tensor("model.embed_tokens.weight", 4), tensor("model.layers.0.a", 7)});
  EXPECT_THAT(refusal(), HasSubstr("twice, with the prefix 'model.' and without it"));
}

TEST_F(CheckpointTest, SomeNamesWithoutThePrefix) {
  write("model.safetensors", {tensor("layers.0.a", 10), tensor("model.embed_tokens.weight", 4), tensor("visual.x", 5),
                              tensor("model.layers.1.a", 7)});
  const Checkpoint c = open();
  EXPECT_THAT(c.names(), ElementsAre("model.embed_tokens.weight", "model.layers.0.a", "model.layers.1.a", "visual.x"));
  EXPECT_EQ(c.stored_name("model.layers.0.a"), "layers.0.a");
  EXPECT_EQ(c.stored_name("model.layers.1.a"), "model.layers.1.a");
  EXPECT_TRUE(c.renames());
}

TEST_F(CheckpointTest, AdapterBesideTheWeights) {
  write("model.safetensors", {tensor("a", 10)});
  write_file_atomic(dir_ / "adapter_config.json", "{}");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("adapter_config.json: an adapter lies beside"), HasSubstr("merge_and_unload")));
}

// 300 spellings of one file were 300 maps of it.
TEST_F(CheckpointTest, MapsAShardOfManyNamesOnce) {
  write("model-1.safetensors", {tensor("a", 10), tensor("b", 20), tensor("c", 30), tensor("d", 40)});
  fs::create_hard_link(dir_ / "model-1.safetensors", dir_ / "hard.safetensors");
  fs::create_symlink("model-1.safetensors", dir_ / "link.safetensors");
  write_index(
      R"({"a": "model-1.safetensors", "b": ".//model-1.safetensors", "c": "hard.safetensors", "d": "link.safetensors"})");
  const Checkpoint shards = open();
  EXPECT_THAT(shards.names(), ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(shards.at("d").data.size(), 40u);
  std::ifstream maps("/proc/self/maps");
  int mapped = 0;
  for (std::string line; std::getline(maps, line);) mapped += line.ends_with(".safetensors") ? 1 : 0;
  EXPECT_EQ(mapped, 1);
}

TEST_F(CheckpointTest, FingerprintTellsModelsApart) {
  write("model.safetensors", {tensor("a", 20000), tensor("b", 4)});
  const std::string first = open().fingerprint();
  EXPECT_EQ(first.size(), 10u + 64u);
  EXPECT_THAT(first, ::testing::StartsWith("v2:sha256:"));
  EXPECT_EQ(open().fingerprint(), first);
  for (const std::size_t place : {std::size_t{0}, std::size_t{10000}, std::size_t{19999}}) {
    data_[place] ^= std::byte{1};
    write("model.safetensors", {tensor("a", 20000), tensor("b", 4, 20000)});
    EXPECT_NE(open().fingerprint(), first) << place;
    data_[place] ^= std::byte{1};
  }
  write("model.safetensors", {tensor("a", 20000), tensor("c", 4)});
  EXPECT_NE(open().fingerprint(), first);
  write("model.safetensors", {tensor("a", 20000), tensor("b", 4)});
  EXPECT_EQ(open().fingerprint(), first);
  std::string config = kConfig;
  config.insert(config.size() - 1, R"(, "rope_theta": 20000.0)");
  write_file_atomic(dir_ / "config.json", config);
  EXPECT_NE(open().fingerprint(), first);
}

TEST_F(CheckpointTest, FingerprintLeavesOutWhatProgramsRewrite) {
  write("model.safetensors", {tensor("a", 20000)});
  const auto with = [&](const std::string& members) {
    std::string config = kConfig;
    config.insert(config.size() - 1, members);
    write_file_atomic(dir_ / "config.json", config);
    return open().fingerprint();
  };
  const std::string first = open().fingerprint();
  EXPECT_EQ(
      with(R"(, "transformers_version": "5.0", "torch_dtype": "bfloat16", "use_cache": false, "auto_map": {"a": "b"})"),
      first);
  EXPECT_NE(with(R"(, "any_other_key": 1)"), first);
  EXPECT_EQ(with(R"(, "x_config": {"dtype": "float32"})"), with(R"(, "x_config": {})"));
  EXPECT_NE(with(R"(, "x": {"dtype": "float32"})"), with(R"(, "x": {})"));
  // One number however it is written, and keys in any order.
  EXPECT_EQ(with(R"(, "p": 1000000, "q": [1.50, null, true])"), with(R"(, "q": [1.5, null, true], "p": 1e6)"));
  EXPECT_NE(with(R"(, "q": [1.5, null])"), with(R"(, "q": [1.5])"));
}

TEST_F(CheckpointTest, MissingFiles) {
  EXPECT_THAT(refusal(), AllOf(HasSubstr("neither model.safetensors nor"), HasSubstr("converted to safetensors")));
  write_index(R"({"a": "model-1.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("shard 'model-1.safetensors' is missing"));
  write_file_atomic(dir_ / "model-q4.gguf", "GGUF");
  EXPECT_THAT(refusal(), HasSubstr("shard 'model-1.safetensors' is missing"));
  fs::remove(dir_ / "model.safetensors.index.json");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("gguf_file=FILE"), HasSubstr("save_pretrained")));
  fs::remove(dir_ / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("config.json: cannot be opened"));
}

TEST_F(CheckpointTest, DamagedConfig) {
  const auto with = [&](const std::string& text) {
    write_file_atomic(dir_ / "config.json", text);
    return refusal();
  };
  EXPECT_THAT(with(""), HasSubstr("config.json: is not valid JSON"));
  EXPECT_THAT(with("[]"), HasSubstr("config.json: is array, expected a JSON object"));
  EXPECT_THAT(with(std::string(1000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(with("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(with(std::string(5 << 20, ' ')), HasSubstr("larger than"));
}

TEST_F(CheckpointTest, CyclicAndDanglingLinks) {
  fs::create_symlink("model.safetensors", dir_ / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors: cannot be opened"));
  fs::remove(dir_ / "model.safetensors");
  write_index(R"({"a": "x.safetensors"})");
  fs::create_symlink("y.safetensors", dir_ / "x.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("x.safetensors: cannot be opened"));
  fs::create_directory(dir_ / "y.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("not a regular file"));
}

TEST_F(CheckpointTest, IndexThatLeavesTheDirectory) {
  for (const std::string name : {"../x.safetensors", "/etc/passwd", "a/../../x", "", "..", "a/..", "x\\\\y", "x/"}) {
    write_index("{\"a\": \"" + name + "\"}");
    EXPECT_THAT(refusal(), HasSubstr("is not inside the checkpoint's directory")) << name;
  }
  write_index(R"({"a": "x\u0000y"})");
  EXPECT_THAT(refusal(), HasSubstr("'x\\x00y' of tensor 'a' is not inside"));
}

TEST(ShardIndex, ReadsAnIndex) {
  const auto map = parse_shard_index(
      R"({"metadata": {"weight_map": {"no": "x"}}, "weight_map": {"b": "2", "a": "sub/1"}, "later": [{}, null, 1.5]})",
      "i");
  EXPECT_THAT(map, ElementsAre(std::pair("a", "sub/1"), std::pair("b", "2")));
  EXPECT_TRUE(parse_shard_index(R"({"weight_map": {}})", "i").empty());
  // Of repeated keys the last one counts, as in Python.
  EXPECT_THAT(parse_shard_index(R"({"weight_map": {"c": "3"}, "weight_map": {"a": "1", "a": "2"}})", "i"),
              ElementsAre(std::pair("a", "2")));
}

TEST(ShardIndex, RefusesOtherText) {
  const auto refusal = [](const std::string& text) { return message_of([&] { parse_shard_index(text, "i.json"); }); };
  EXPECT_THAT(refusal(""), HasSubstr("i.json: is not valid JSON"));
  EXPECT_THAT(refusal("{}"), HasSubstr("has no 'weight_map'"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is an array, expected a JSON object"));
  EXPECT_THAT(refusal("3"), HasSubstr("is a number, expected a JSON object"));
  EXPECT_THAT(refusal(R"({"weight_map": [["a", "b"]]})"), HasSubstr("'weight_map' is an array"));
  EXPECT_THAT(refusal(R"({"weight_map": "x"})"), HasSubstr("'weight_map' is a string"));
  EXPECT_THAT(refusal(R"({"weight_map": {"a": 1}})"), HasSubstr("the shard of tensor 'a' is a number"));
  EXPECT_THAT(refusal(R"({"weight_map": {"a": {"b": "c"}}})"), HasSubstr("the shard of tensor 'a' is an object"));
  EXPECT_THAT(refusal(R"({"weight_map": {"a": ["c"]}})"), HasSubstr("the shard of tensor 'a' is an array"));
  EXPECT_THAT(refusal(R"({"weight_map": {"a": "1"})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"weight_map\": {\"a\": \"\xff\"}}"), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal("{\"x\": " + std::string(1000000, '[')), HasSubstr("nested deeper"));
}

TEST(ShardIndex, LargeIndexesStayCheap) {  // a list of 200,000 tensors, as large mixture models have
  std::string text = "{\"weight_map\": {";
  for (int i = 0; i < 200000; ++i) text += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + "\":\"s\"";
  EXPECT_EQ(parse_shard_index(text + "}}", "i").size(), 200000u);
}

TEST(SampleModel, OpensAndHasAFingerprint) {
  const fs::path samples = fs::path(OSCAR_SOURCE_DIR) / "sample_data";
  const Checkpoint plain = Checkpoint::open(locate_model((samples / "tiny-qwen3").string()));
  const Checkpoint outliers = Checkpoint::open(locate_model((samples / "tiny-qwen3-outliers").string()));
  EXPECT_EQ(plain.config().layers, 4);
  EXPECT_EQ(plain.config().head_dim, 128);
  EXPECT_NE(plain.fingerprint(), outliers.fingerprint());
}

}  // namespace
}  // namespace oscar
