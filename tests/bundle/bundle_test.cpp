#include "bundle/bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "bundle/bundle_files.h"
#include "bundle/manifest.h"
#include "bundle/model_card.h"
#include "bundle_fixture.h"
#include "checkpoint/safetensors.h"
#include "registry/registry.h"
#include "support/message_of.h"
#include "support/temp_directory.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

void expect_equal(const SideTransform& a, const SideTransform& b) {
  EXPECT_TRUE(at::equal(a.forward, b.forward));
  for (const Side side : {Side::kKey, Side::kValue}) {
    EXPECT_EQ(a.back(side).defined(), b.back(side).defined());
    if (a.back(side).defined() && b.back(side).defined()) {
      EXPECT_TRUE(at::equal(a.back(side), b.back(side)));
    }
  }
  EXPECT_EQ(a.mean.defined(), b.mean.defined());
  if (a.mean.defined() && b.mean.defined()) {
    EXPECT_TRUE(at::equal(a.mean, b.mean));
  }
  EXPECT_TRUE(at::equal(a.eigenvalues, b.eigenvalues));
  EXPECT_EQ(a.clip, b.clip);
  EXPECT_EQ(a.widths, b.widths);
  EXPECT_EQ(a.sigma.defined(), b.sigma.defined());
  if (a.sigma.defined() && b.sigma.defined()) {
    EXPECT_TRUE(at::equal(a.sigma, b.sigma));
  }
}

TEST(Bundle, RoundTripKeepsEverything) {
  for (const bool per_head : {false, true}) {
    const TempDirectory temp;
    const Bundle bundle = small_bundle(3, 16, 2, per_head);
    save_bundle(bundle, temp / "b", false);
    const Bundle loaded = load_bundle(temp / "b");
    EXPECT_EQ(loaded.method, bundle.method);
    EXPECT_EQ(loaded.scope, bundle.scope);
    EXPECT_EQ(loaded.model_fingerprint, bundle.model_fingerprint);
    EXPECT_EQ(loaded.model, bundle.model);
    EXPECT_EQ(loaded.windows.sink, 64);
    EXPECT_EQ(loaded.windows.recent, 256);
    EXPECT_EQ(loaded.encoder, "minmax");
    EXPECT_EQ(loaded.hadamard_block, 16);
    EXPECT_EQ(loaded.global_key_clip, 0.96f);
    EXPECT_EQ(loaded.global_value_clip, 0.92f);
    EXPECT_EQ(loaded.provenance, bundle.provenance);
    ASSERT_EQ(loaded.layers.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(loaded.layers[i].layer, static_cast<std::int64_t>(i));
      EXPECT_EQ(loaded.layers[i].kv_heads, 2);
      expect_equal(loaded.layers[i].key, bundle.layers[i].key);
      expect_equal(loaded.layers[i].value, bundle.layers[i].value);
    }
  }
}

TEST(Bundle, NonOrthogonalCenteredTransformsSurvive) {
  const TempDirectory temp;
  Bundle bundle = small_bundle();
  for (const bool key : {true, false}) {
    SideTransform& side = key ? bundle.layers[1].key : bundle.layers[1].value;
    const at::Tensor scale = at::linspace(0.5, 2.0, 16);
    const at::Tensor inverse = (side.forward * scale.reciprocal()).transpose(1, 2).contiguous();
    if (key) side.query_side = (side.forward * scale.reciprocal()).contiguous();
    side.forward = (side.forward * scale).contiguous();
    if (!key) side.inverse = inverse;
    side.mean = at::randn({2, 16});
  }
  save_bundle(bundle, temp / "b", false);
  const Bundle loaded = load_bundle(temp / "b");
  expect_equal(loaded.layers[1].key, bundle.layers[1].key);
  expect_equal(loaded.layers[1].value, bundle.layers[1].value);
  bundle.layers[1].key.query_side = bundle.layers[1].key.query_side * 1.01;
  EXPECT_THAT(check_bundle(bundle), ::testing::ElementsAre(HasSubstr("layer 1 key transform and its inverse")));
  std::swap(bundle.layers[1].key.query_side, bundle.layers[1].key.inverse);
  EXPECT_THAT(check_bundle(bundle), ::testing::ElementsAre(HasSubstr("layer 1 key has an inverse")));
}

TEST(Bundle, BlockWidthsSurvive) {
  const TempDirectory temp;
  const Bundle bundle = blocks_bundle();
  save_bundle(bundle, temp / "b", false);
  const Bundle loaded = load_bundle(temp / "b");
  EXPECT_EQ(loaded.encoder, "search");
  for (std::size_t i = 0; i < 2; ++i) {
    expect_equal(loaded.layers[i].key, bundle.layers[i].key);
    expect_equal(loaded.layers[i].value, bundle.layers[i].value);
  }
  const Json manifest = read_json(temp / "b" / kManifestName);
  EXPECT_EQ(manifest["format_version"], 2);
  EXPECT_EQ(manifest["code"]["layout"], "blocks");
  EXPECT_EQ(manifest["layers"][0]["key"]["widths"], Json({4, 2, 1, 0}));
  EXPECT_FALSE(manifest["layers"][1]["value"].contains("widths"));
  save_bundle(small_bundle(), temp / "uniform", false);  // what an older program can read, it still gets
  EXPECT_EQ(read_json(temp / "uniform" / kManifestName)["format_version"], 1);
}

// A bundle with widths has no clip and not 2 bits everywhere.
TEST(Bundle, CardsSayWhichCodesABundleHas) {
  Bundle bundle = blocks_bundle();
  bundle.global_key_clip = bundle.global_value_clip = 0.0f;
  const std::string mixed = card_head(bundle, "title"), plain = card_head(small_bundle(), "title");
  EXPECT_THAT(mixed, HasSubstr("| code | groups of 0, 1, 2, 4 bits; 2 bits, one scale for each head, "));
  EXPECT_THAT(mixed, ::testing::Not(HasSubstr("clip")));
  EXPECT_THAT(plain, HasSubstr("| code | 2 bits, one scale for each head, "));
  EXPECT_THAT(plain, HasSubstr("| one clip pair for all layers | keys 0.960, values 0.920 (0: off) |"));
}

// Format version 3: means of keys before RoPE.
Bundle version3_bundle() {
  Bundle bundle = blocks_bundle();
  for (LayerTransform& layer : bundle.layers) {
    layer.key.mean = at::randn({2, 32});
    layer.key.rotated_mean = true;
  }
  return bundle;
}

TEST(Bundle, RotatedMeansSurvive) {
  const TempDirectory temp;
  const Bundle bundle = version3_bundle();
  save_bundle(bundle, temp / "b", false);
  const Bundle loaded = load_bundle(temp / "b");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(loaded.layers[i].key.mean, bundle.layers[i].key.mean));
    EXPECT_TRUE(loaded.layers[i].key.rotated_mean);
    EXPECT_FALSE(loaded.layers[i].value.rotated_mean);
  }
  EXPECT_EQ(read_json(temp / "b" / kManifestName)["format_version"], 3);
}

TEST(Bundle, RotatedMeansThatCannotBeAreNamed) {
  Bundle bundle = version3_bundle();
  EXPECT_TRUE(check_bundle(bundle).empty());
  bundle.layers[1].value.rotated_mean = true;
  EXPECT_THAT(check_bundle(bundle), ::testing::ElementsAre(HasSubstr("rotated mean")));
}

TEST(Bundle, BlockWidthsThatCannotBeCodedAreNamed) {
  Bundle bundle = blocks_bundle();
  EXPECT_TRUE(check_bundle(bundle).empty());
  bundle.layers[0].key.widths = {4, 3, 1, 0};
  EXPECT_THAT(check_bundle(bundle), ::testing::ElementsAre(HasSubstr("block width 3")));
  bundle = blocks_bundle();
  bundle.layers[1].key.widths = {4, 2, 1};
  EXPECT_THAT(check_bundle(bundle), ::testing::ElementsAre(HasSubstr("has 3 block widths")));
  bundle = blocks_bundle();
  bundle.layers[0].value.sigma = at::zeros({2, 4});
  EXPECT_THAT(check_bundle(bundle), ::testing::ElementsAre(HasSubstr("not all positive")));
  bundle = blocks_bundle();
  bundle.layers[0].value.sigma = at::Tensor();
  EXPECT_THAT(check_bundle(bundle), ::testing::ElementsAre(HasSubstr("deviations have a wrong shape")));
  bundle = blocks_bundle(1, 16);
  EXPECT_THAT(check_bundle(bundle).front(), HasSubstr("32 divides"));
}

TEST(Bundle, RowsForTheSelfCheckMayBeDeletedButNotEdited) {
  const TempDirectory temp;
  Bundle bundle = small_bundle();
  const auto rows = [](std::int64_t n) { return at::randn({n, 2, 16}).to(at::kBFloat16); };
  bundle.check_rows = {{4, 9, 70}, {{0, rows(1), rows(3), rows(3)}, {1, rows(1), rows(3), rows(3)}}};
  save_bundle(bundle, temp / "b", false);
  const fs::path file = temp / "b" / kCheckRowsName;
  const SafetensorsFile held = SafetensorsFile::open(file);
  EXPECT_EQ(held.tensors().size(), 7u);
  EXPECT_EQ(held.at("positions").dtype, DType::kI64);
  EXPECT_EQ(held.at("layers.1.k").dtype, DType::kBF16);
  EXPECT_EQ(held.at("layers.1.k").shape, (std::vector<std::int64_t>{3, 2, 16}));
  EXPECT_EQ(std::memcmp(held.at("layers.1.v").data.data(), bundle.check_rows.layers[1].v.const_data_ptr(), 192), 0);
  load_bundle(temp / "b");
  write_file_atomic(file, "rows");
  EXPECT_THAT(message_of([&] { load_bundle(temp / "b"); }), HasSubstr("self_check.safetensors: has 4 bytes"));
  fs::remove(file);
  EXPECT_TRUE(load_bundle(temp / "b").check_rows.layers.empty());
}

TEST(Bundle, SavedTwiceIsByteIdentical) {
  const TempDirectory temp;
  save_bundle(small_bundle(), temp / "a", false);
  save_bundle(small_bundle(), temp / "b", false);
  for (const char* name : {kManifestName, kRotationsName, kCardName}) {
    EXPECT_EQ(read_file(temp / "a" / name), read_file(temp / "b" / name)) << name;
  }
}

TEST(Bundle, OverwritesOnlyBundlesAndOnlyWhenAsked) {
  const TempDirectory temp;
  save_bundle(small_bundle(2), temp / "b", false);
  EXPECT_THAT(message_of<UsageError>([&] { save_bundle(small_bundle(3), temp / "b", false); }),
              HasSubstr("already exists"));
  EXPECT_EQ(load_bundle(temp / "b").layers.size(), 2u);
  save_bundle(small_bundle(3), temp / "b/", true);
  EXPECT_EQ(load_bundle(temp / "b").layers.size(), 3u);

  fs::create_directory(temp / "photos");
  write_file_atomic(temp / "photos/one.jpg", "x");
  EXPECT_THAT(message_of<UsageError>([&] { save_bundle(small_bundle(), temp / "photos", true); }),
              HasSubstr("will not replace it"));
  EXPECT_TRUE(fs::exists(temp / "photos/one.jpg"));
  write_file_atomic(temp / "file", "x");
  EXPECT_THAT(message_of<UsageError>([&] { save_bundle(small_bundle(), temp / "file", true); }),
              HasSubstr("is a file"));
  // Nothing of the failed attempts is left behind.
  for (const auto& entry : fs::directory_iterator(temp.path())) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("tmp")));
  }
}

TEST(Bundle, OverwritingTouchesNothingElse) {
  const TempDirectory temp;
  save_bundle(small_bundle(), temp / "b", false);
  const auto refused = [&](const fs::path& name) {
    const std::string sentence = message_of<UsageError>([&] { save_bundle(small_bundle(), temp / "b", true); });
    EXPECT_THAT(sentence, HasSubstr(name.string()));
    fs::remove_all(temp / "b" / name);
  };
  write_file_atomic(temp / "b" / "notes.txt", "precious");
  refused("notes.txt");
  write_file_atomic(temp / "b" / "thesis" / "chapter", "precious");
  refused("thesis");
  fs::create_directory(temp / "b" / "empty");
  refused("empty");
  fs::create_symlink(temp / "elsewhere", temp / "b" / "link");
  refused("link");
  fs::rename(temp / "b" / kCardName, temp / "card");
  fs::create_symlink(temp / "card", temp / "b" / kCardName);  // a link under a name of ours is not ours
  refused(kCardName);
  save_bundle(small_bundle(), temp / "b", true);
  EXPECT_TRUE(fs::exists(temp / "card"));
  EXPECT_EQ(std::distance(fs::directory_iterator(temp.path()), fs::directory_iterator{}), 2);  // nothing left behind
}

// What comes into the directory while the new one is built stays: the old one is then not replaced.
TEST(Bundle, FilesThatComeMeanwhileStay) {
  const TempDirectory temp;
  save_bundle(small_bundle(), temp / "b", false);
  AtomicDirectory out(temp / "b", true, bundle_directory());
  write_file_atomic(out.path() / kManifestName, "{}");
  write_file_atomic(temp / "b" / "notes.txt", "precious");
  EXPECT_THROW(out.commit(), UsageError);
  EXPECT_EQ(read_file(temp / "b" / "notes.txt"), "precious");
  EXPECT_NO_THROW(load_bundle(temp / "b"));
}

TEST(Bundle, ABundleThatComesMeanwhileIsNotReplacedUnasked) {
  const TempDirectory temp;
  AtomicDirectory out(temp / "b", false, bundle_directory());
  write_file_atomic(out.path() / kManifestName, "{}");
  save_bundle(small_bundle(3), temp / "b", false);
  EXPECT_THROW(out.commit(), UsageError);
  EXPECT_EQ(load_bundle(temp / "b").layers.size(), 3u);
}

TEST(Bundle, NamesThatLeaveTheDirectoryAreNotOurs) {
  EXPECT_EQ(names_inside({"a", "a/b", "../a", "/a", "a/../b", "./a", "a/", "", ".", "..", "a//b"}),
            (std::set<std::string>{"a", "a/b"}));
}

TEST(Bundle, UnwritablePlaceIsAnEnvironmentError) {
  EXPECT_THROW(save_bundle(small_bundle(), "/proc/no/such/place", false), EnvironmentError);
}

TEST(Bundle, UnsoundOnesAreNotWritten) {
  const TempDirectory temp;
  Bundle bundle = small_bundle();
  bundle.layers[1].value.forward = bundle.layers[1].value.forward * 1.01;
  EXPECT_THAT(message_of<NumericalError>([&] { save_bundle(bundle, temp / "b", false); }),
              HasSubstr("layer 1 value rotation is not orthogonal"));
  EXPECT_FALSE(fs::exists(temp / "b"));
}

TEST(CheckBundle, SoundBundleHasNoFaults) { EXPECT_TRUE(check_bundle(small_bundle()).empty()); }

TEST(CheckBundle, NamesEveryFault) {
  const auto faults_after = [](const std::function<void(Bundle&)>& damage) {
    Bundle bundle = small_bundle();
    damage(bundle);
    return ::testing::PrintToString(check_bundle(bundle));
  };
  EXPECT_THAT(faults_after([](Bundle& b) { b.layers.clear(); }), HasSubstr("no layers"));
  EXPECT_THAT(faults_after([](Bundle& b) { b.layers[0].layer = 1; }), HasSubstr("layer 1 is out of order"));
  EXPECT_THAT(faults_after([](Bundle& b) {
                b.layers[0].key.forward = at::eye(16).unsqueeze(0).repeat({3, 1, 1});
              }),
              HasSubstr("layer 0 key rotation is not [1 or 2, 16, 16]"));
  EXPECT_THAT(faults_after([](Bundle& b) { b.layers[0].value.forward = at::Tensor(); }),
              HasSubstr("layer 0 value rotation is not"));
  EXPECT_THAT(
      faults_after([](Bundle& b) { b.layers[0].key.forward[0][3][4] = std::numeric_limits<float>::quiet_NaN(); }),
      HasSubstr("layer 0 key rotation holds NaN"));
  EXPECT_THAT(faults_after([](Bundle& b) { b.layers[1].key.forward[0][3].zero_(); }),
              HasSubstr("layer 1 key rotation is not orthogonal"));
  EXPECT_THAT(faults_after([](Bundle& b) { b.layers[1].key.clip = {0.9f, 0.9f, 0.9f}; }), HasSubstr("3 clip ratios"));
  EXPECT_THAT(faults_after([](Bundle& b) { b.layers[1].key.clip = {1.5f}; }), HasSubstr("clip ratio is 1.5"));
  EXPECT_THAT(faults_after([](Bundle& b) { b.quant_group = 5; }), HasSubstr("group 5 does not divide"));
  EXPECT_THAT(faults_after([](Bundle& b) { b.layers[1].key.mean = at::zeros({1, 16}); }), HasSubstr("mean"));
}

TEST(CheckBundleModel, AcceptsItsModelAndNamesDifferences) {
  const Bundle bundle = small_bundle();
  ModelConfig model;
  model.layers = 2;
  model.kv_heads = 2;
  model.head_dim = 16;
  EXPECT_TRUE(check_bundle_model(bundle, model, bundle.model_fingerprint).empty());
  EXPECT_THAT(check_bundle_model(bundle, model, "sha256:other"),
              ::testing::ElementsAre(HasSubstr("fitted on another model")));
  model.layers = 1;
  EXPECT_THAT(check_bundle_model(bundle, model, bundle.model_fingerprint),
              ::testing::ElementsAre(HasSubstr("has layer 1, the model only 1")));
  model.layers = 3;
  EXPECT_THAT(check_bundle_model(bundle, model, bundle.model_fingerprint),
              ::testing::ElementsAre(HasSubstr("layer count of 2, the model 3")));
  model.layers = 2;
  model.head_dim = 32;
  EXPECT_THAT(check_bundle_model(bundle, model, bundle.model_fingerprint),
              ::testing::ElementsAre(HasSubstr("head_dim of layer 0 16, the model 32")));
  model.head_dim = 16;
  model.kv_heads = 1;
  EXPECT_THAT(check_bundle_model(bundle, model, bundle.model_fingerprint),
              ::testing::ElementsAre(HasSubstr("KV heads of layer 0 2, the model 1")));
}

TEST(Bundle, LatentAttentionHasOnlyTheKeySideInItsFiles) {
  const TempDirectory temp;
  const Bundle bundle = latent_bundle();
  save_bundle(bundle, temp / "b", false);
  const Json json = read_json(temp / "b" / kManifestName);
  EXPECT_EQ(json["format_version"], 4);
  EXPECT_EQ(json["model"]["attention"], "latent");
  EXPECT_FALSE(json["layers"][0].contains("value"));
  const SafetensorsFile file = SafetensorsFile::open(temp / "b" / kRotationsName);
  for (const TensorView& tensor : file.tensors()) {
    EXPECT_EQ(tensor.name.find(".v."), std::string::npos) << tensor.name;
  }
  const Bundle read = load_bundle(temp / "b");
  EXPECT_TRUE(read.latent());
  EXPECT_EQ(read.rope_dim(), 4);
  for (const LayerTransform& layer : read.layers) {
    const at::Tensor x = at::rand({3, 16});
    EXPECT_TRUE(at::allclose(at::matmul(at::matmul(x, layer.value.forward[0]), layer.value.inverse[0]), x, 1e-4, 1e-5));
    EXPECT_TRUE(layer.value.forward.equal(layer.key.forward));
  }
}

// An older reader refuses it, because it would read the last block as channels of its own.
TEST(Bundle, RefinedCodesOfLatentAttentionHaveTheirOwnVersion) {
  const TempDirectory temp;
  Bundle bundle = latent_bundle(2, 32);
  bundle.method = "waterfill", bundle.encoder = "search";
  set_block_widths(bundle.layers[0], {4, 2, 1, 0}, {4, 2, 1, 0});
  set_block_widths(bundle.layers[1], {4, 2, 1, 0}, {4, 2, 1, 0});
  save_bundle(bundle, temp / "plain", false);
  EXPECT_EQ(read_json(temp / "plain" / kManifestName)["format_version"], 4);
  set_block_widths(bundle.layers[1], {4, 2, 1, 2, true}, {4, 2, 1, 2, true});
  EXPECT_TRUE(bundle.layers[1].key.sigma[0].equal(at::tensor({0.125f, 0.5f, 1.0f, 0.0625f})));
  save_bundle(bundle, temp / "b", false);
  const Json json = read_json(temp / "b" / kManifestName);
  EXPECT_EQ(json["format_version"], 5);
  EXPECT_FALSE(json["layers"][0]["key"].contains("refined"));
  EXPECT_EQ(json["layers"][1]["key"]["refined"], true);
  const Bundle read = load_bundle(temp / "b");
  EXPECT_EQ(read.layers[0].key.code(32, 0), band_code(32, {4, 2, 1, 0}));
  EXPECT_EQ(read.layers[1].key.code(32, 0), band_code(32, {4, 2, 1, 2}, true));
  EXPECT_EQ(read.layers[1].value.code(32, 0), read.layers[1].key.code(32, 0));
  Json bad = json;
  for (const char* widths : {"[0, 2, 1, 2]", "[4, 2, 1, 0]"}) {
    bad["layers"][1]["key"]["widths"] = Json::parse(widths);
    EXPECT_THROW(manifest_from_json(bad, "f"), InputError) << widths;
  }
  bad["layers"][1]["key"].erase("widths");
  EXPECT_THROW(manifest_from_json(bad, "f"), InputError);
  Bundle other = blocks_bundle();
  other.layers[0].key.widths = {4, 2, 1, 2}, other.layers[0].key.refined = true;
  EXPECT_THAT(check_bundle(other), ::testing::ElementsAre(HasSubstr("layer 0 has refined codes")));
}

// Readers of the version that it names would not know it, and so it was written by no release.
TEST(Bundle, AVersionHoldsNothingThatCameLater) {
  const auto read_as = [](const Bundle& bundle, std::int64_t version) {
    const TempDirectory temp;
    save_bundle(bundle, temp / "b", false);
    Json json = read_json(temp / "b" / kManifestName);
    json["format_version"] = version;
    return message_of<InputError>([&] { manifest_from_json(json, "f"); });
  };
  Bundle rotated = blocks_bundle();
  for (LayerTransform& layer : rotated.layers) {
    layer.key.mean = at::zeros({layer.kv_heads, layer.head_dim}), layer.key.rotated_mean = true;
  }
  Bundle refined = latent_bundle(2, 32);
  refined.method = "waterfill", refined.encoder = "search";
  for (LayerTransform& layer : refined.layers) set_block_widths(layer, {4, 2, 1, 0}, {4, 2, 1, 0});
  set_block_widths(refined.layers[1], {4, 2, 1, 2, true}, {4, 2, 1, 2, true});
  const auto expect = [&](const Bundle& bundle, std::int64_t least, const std::string& what) {
    EXPECT_EQ(read_as(bundle, least), "(no error)");
    EXPECT_EQ(read_as(bundle, 5), "(no error)");
    for (std::int64_t version = 1; version < least; ++version) {
      EXPECT_EQ(read_as(bundle, version), "f: format_version is " + std::to_string(version) + ", expected at least " +
                                              std::to_string(least) + " for " + what + "; fit the model again");
    }
  };
  expect(small_bundle(), 1, "");
  expect(blocks_bundle(), 2, "block widths");
  expect(rotated, 3, "rotated means");
  expect(latent_bundle(), 4, "latent attention");
  expect(refined, 5, "refined codes");
}

TEST(CheckBundleModel, LatentAttentionBelongsToItsModels) {
  Bundle bundle = latent_bundle();
  ModelConfig model;
  model.layers = 2, model.kv_heads = 1, model.head_dim = 16, model.latent.rope_dim = 4;
  const auto fault = [&] {
    const std::vector<std::string> faults = check_bundle_model(bundle, model, bundle.model_fingerprint);
    return faults.empty() ? std::string("none") : faults.front();
  };
  EXPECT_TRUE(check_bundle(bundle).empty());
  EXPECT_EQ(fault(), "none");
  model.latent.rope_dim = 8;
  EXPECT_THAT(fault(), HasSubstr("rope_dim 4, the model 8"));
  model.latent = {};
  EXPECT_THAT(fault(), HasSubstr("the bundle is for latent attention, which the model does not have"));
  bundle = small_bundle(2, 16, 1);
  EXPECT_EQ(fault(), "none");
  model.latent.rope_dim = 4;
  EXPECT_THAT(fault(), HasSubstr("for keys and values apart, and the model has latent attention"));
}

TEST(CheckBundleModel, AListedLayerMayBeMissingWhereTheWindowsHoldIt) {
  Bundle bundle = small_bundle();  // layers 0 and 1
  bundle.windows = {4, 16, 1};
  ModelConfig model;
  model.layers = 3, model.kv_heads = 2, model.head_dim = 16;
  model.sliding_window = {0, 0, 16};
  const auto fault = [&] {
    const std::vector<std::string> faults = check_bundle_model(bundle, model, bundle.model_fingerprint);
    return faults.empty() ? std::string("none") : faults.front();
  };
  EXPECT_THAT(fault(), HasSubstr("layer 2 is missing"));  // without a word
  bundle.model["left_out"] = Json::parse(R"([{"layer": 2, "reason": "a window"}])");
  EXPECT_EQ(fault(), "none");
  model.sliding_window = {0, 0, 17};
  EXPECT_THAT(fault(), HasSubstr("leaves out layer 2, whose queries see 17 tokens: more than a recent window of 16"));
  model.sliding_window = {};
  EXPECT_THAT(fault(), HasSubstr("leaves out layer 2, whose queries see all tokens"));
  model.sliding_window = {0, 0, 16};
  bundle.model.erase("left_out");
  bundle.method = kPublishedMethod;  // such files list nothing
  EXPECT_EQ(fault(), "none");
}

}  // namespace
}  // namespace oscar
