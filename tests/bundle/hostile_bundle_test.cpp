// A bundle damaged in every way that was thought of: always InputError with a reason, never a crash or a wrong load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/hash.h"
#include "base/random.h"
#include "bundle/bundle.h"
#include "bundle/manifest.h"
#include "bundle_fixture.h"
#include "checkpoint/safetensors.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

class HostileBundle : public ::testing::Test {
 protected:
  void SetUp() override { save_bundle(small_bundle(), dir_, false); }

  std::string load_error() {
    return message_of<InputError>([&] { load_bundle(dir_); });
  }
  Json manifest() { return read_json(dir_ / kManifestName); }
  // The manifest changed by `edit`, and what loading then says.
  std::string after(const std::function<void(Json&)>& edit) {
    Json json = manifest();
    edit(json);
    write_file_atomic(dir_ / kManifestName, dump_json(json));
    const std::string message = load_error();
    fs::remove_all(dir_);
    save_bundle(small_bundle(), dir_, false);
    return message;
  }
  // rotations.safetensors replaced by these tensors, hashes made right: only the content is wrong.
  std::string with_tensors(const std::map<std::string, at::Tensor>& tensors) {
    std::vector<TensorView> views;
    for (const auto& [name, t] : tensors) {
      TensorView view;
      view.name = name;
      view.dtype = t.scalar_type() == at::kDouble ? DType::kF64 : DType::kF32;
      view.shape = t.sizes().vec();
      view.data = {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
      views.push_back(view);
    }
    write_safetensors(dir_ / kRotationsName, views, {});
    return after([&](Json& json) {
      json["files"][kRotationsName]["sha256"] = sha256_file(dir_ / kRotationsName);
      json["files"][kRotationsName]["bytes"] = fs::file_size(dir_ / kRotationsName);
      json["numbers_sha256"] = manifest_numbers_sha256(json);
    });
  }
  static std::map<std::string, at::Tensor> tensors_of(const Bundle& bundle) {
    std::map<std::string, at::Tensor> tensors;
    for (const LayerTransform& layer : bundle.layers) {
      const std::string base = "layers." + std::to_string(layer.layer);
      tensors[base + ".k.forward"] = layer.key.forward.contiguous();
      tensors[base + ".k.eigenvalues"] = layer.key.eigenvalues.contiguous();
      tensors[base + ".v.forward"] = layer.value.forward.contiguous();
      tensors[base + ".v.eigenvalues"] = layer.value.eigenvalues.contiguous();
    }
    return tensors;
  }

  TempDirectory temp_;
  fs::path dir_ = temp_ / "bundle";
};

TEST_F(HostileBundle, PlacesThatAreNoBundle) {
  EXPECT_THAT(message_of<InputError>([&] { load_bundle(temp_ / "absent"); }), HasSubstr("not a directory"));
  EXPECT_THAT(message_of<InputError>([&] { load_bundle(temp_.path()); }), HasSubstr("holds no oscar_bundle.json"));
}

TEST_F(HostileBundle, LayersAreMissingForAReason) {
  const auto with = [&](int layers, const char* list) {
    return after([&](Json& json) {
      json["model"]["layers"] = layers;
      json["model"]["left_out"] = Json::parse(list);
    });
  };
  EXPECT_EQ(with(3, R"([{"layer": 2, "reason": "linear attention"}])"), "(no error)");
  EXPECT_THAT(with(3, R"([{"layer": 1, "reason": "x"}])"), HasSubstr("layer 1 is in 'layers' and in 'left_out'"));
  EXPECT_THAT(with(4, R"([{"layer": 2, "reason": "x"}])"),
              HasSubstr("layer 3 is neither in 'layers' nor in 'left_out'"));
  EXPECT_THAT(with(3, R"([{"layer": 2, "reason": ""}])"), HasSubstr("left out without a reason"));
  EXPECT_THAT(with(3, R"([{"layer": 3, "reason": "x"}])"), HasSubstr("'layer' is 3"));
  EXPECT_THAT(with(3, R"({"layer": 2})"), HasSubstr("'left_out'"));
}

TEST_F(HostileBundle, LatentAttentionHasOneRowOfOneHead) {
  for (const char* latent : {R"({"rank": 12, "rotated": 4})", "[12, 4]", "null"}) {
    EXPECT_THAT(after([&](Json& json) { json["model"]["latent"] = Json::parse(latent); }),
                HasSubstr("is an early bundle for latent attention"));
  }
  const auto with = [&](const char* facts, bool values = false) {
    return after([&](Json& json) {
      json["format_version"] = 4, json["model"].update(Json::parse(facts));
      for (Json& layer : json["layers"]) {
        layer["kv_heads"] = 1, layer["key"]["heads"] = 1;
        if (!values) layer.erase("value");
      }
    });
  };
  const char* kSound = R"({"attention": "latent", "latent_dim": 16, "rope_dim": 4})";
  EXPECT_THAT(with(kSound), HasSubstr("holds the tensor 'layers.0.v."));  // which only other bundles have
  EXPECT_THAT(with(kSound, true),
              HasSubstr("layer 0: has a value side, but with latent attention values are the keys"));
  EXPECT_THAT(with("{}"), HasSubstr("'value' is missing"));
  EXPECT_THAT(with(R"({"attention": "grouped", "latent_dim": 16, "rope_dim": 4})"), HasSubstr("'attention' is"));
  EXPECT_THAT(with(R"({"attention": null, "latent_dim": 16, "rope_dim": 4})"), HasSubstr("expected \"latent\""));
  EXPECT_THAT(
      with(R"({"attention": "latent", "latent_dim": 12, "rope_dim": 4})"),
      HasSubstr("'latent_dim' is 12, expected layers with one KV head of this size and no rotated mean; found 1 "
                "of 16 in layer 0"));
  EXPECT_THAT(with(R"({"attention": "latent", "latent_dim": 16, "rope_dim": 0})"), HasSubstr("'rope_dim' is 0"));
  EXPECT_THAT(with(R"({"attention": "latent", "latent_dim": 16, "rope_dim": "4"})"), HasSubstr("'rope_dim'"));
  EXPECT_THAT(with(R"({"attention": "latent", "rope_dim": 4})"), HasSubstr("'latent_dim' is missing"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["refined"] = true; }),
              HasSubstr("layer 0, key: 'refined' is for latent attention whose first and last block have bits"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["refined"] = 1; }), HasSubstr("'refined'"));
}

TEST_F(HostileBundle, MissingKeysAreNamed) {
  for (const char* key : {"format", "format_version", "method", "scope", "model", "code", "windows", "hadamard_block",
                          "global_clip", "layers", "files", "provenance", "fit"}) {
    EXPECT_THAT(after([&](Json& json) { json.erase(key); }), HasSubstr(std::string(key) + "' is missing"));
  }
  for (const char* key : {"layer", "head_dim", "kv_heads", "key", "value"}) {
    EXPECT_THAT(after([&](Json& json) { json["layers"][1].erase(key); }), HasSubstr(key));
  }
  for (const char* key : {"heads", "clip"}) {
    EXPECT_THAT(after([&](Json& json) { json["layers"][1]["key"].erase(key); }), HasSubstr(key));
  }
}

TEST_F(HostileBundle, VersionsHaveTheirOwnErrors) {
  EXPECT_THAT(after([](Json& json) { json["format_version"] = 6; }), HasSubstr("newer than the 5"));
  EXPECT_THAT(after([](Json& json) { json["format_version"] = 0; }), HasSubstr("does not exist"));
  EXPECT_THAT(after([](Json& json) { json["format_version"] = "1"; }), HasSubstr("expected an integer"));
  EXPECT_THAT(after([](Json& json) { json["format"] = "zip"; }), HasSubstr("'format' is 'zip'"));
}

TEST_F(HostileBundle, WrongValuesAreNamed) {
  EXPECT_THAT(after([](Json& json) { json["scope"] = "tile"; }), HasSubstr("'scope' is 'tile'"));
  EXPECT_THAT(after([](Json& json) { json["method"] = ""; }), HasSubstr("'method' is ''"));
  EXPECT_THAT(after([](Json& json) { json["code"]["layout"] = "blocks"; }), HasSubstr("'blocks'"));
  EXPECT_THAT(after([](Json& json) { json["code"]["bits"] = 3; }), HasSubstr("3 bits"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["widths"] = {4, 2, 1, 1}; }), HasSubstr("32 divides"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["widths"] = {4, 2, 1}; }), HasSubstr("3 entries"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["widths"] = {4, 2, 1, 3}; }), HasSubstr("width is 3"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["widths"] = {4, -2, 1, 1}; }), HasSubstr("width is -2"));
  EXPECT_THAT(after([](Json& json) { json["code"]["encoder"] = "magic"; }), HasSubstr("'magic'"));
  EXPECT_THAT(after([](Json& json) { json["code"]["group"] = 5; }), HasSubstr("group 5 does not divide"));
  EXPECT_THAT(after([](Json& json) { json["windows"]["sink"] = -1; }), HasSubstr("'sink' is -1"));
  EXPECT_THAT(after([](Json& json) { json["global_clip"]["key"] = 1.5; }), HasSubstr("clip ratio is 1.5"));
  EXPECT_THAT(after([](Json& json) { json["layers"] = Json::array(); }), HasSubstr("'layers' has 0 entries"));
  EXPECT_THAT(after([](Json& json) { json["layers"][1]["layer"] = 0; }), HasSubstr("ascending order"));
  EXPECT_THAT(after([](Json& json) { json["layers"][1]["layer"] = 7; }), HasSubstr("layer 7 is beyond the model's 2"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["head_dim"] = 1000000000; }), HasSubstr("expected 1 to 4096"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["head_dim"] = 32; }), HasSubstr("expected F32 [1, 32, 32]"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["kv_heads"] = 0; }), HasSubstr("'kv_heads' is 0"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["heads"] = 3; }), HasSubstr("'heads' is 3"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["clip"] = {0.9, 0.9, 0.9}; }), HasSubstr("3 entries"));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["clip"] = {"x"}; }), HasSubstr("clip ratio is \"x\""));
  EXPECT_THAT(after([](Json& json) { json["layers"][0]["key"]["orthogonal"] = false; }), HasSubstr("inverse_or_query"));
  EXPECT_THAT(after([](Json& json) { json["layers"].erase(1); }), HasSubstr("which the manifest does not mention"));
}

TEST_F(HostileBundle, FileNamesCannotLeaveTheBundle) {
  for (const char* name : {"../secret", "/etc/passwd", "a/b", "..", ".hidden", "", "a\\b"}) {
    EXPECT_THAT(after([&](Json& json) { json["files"][name] = json["files"][kRotationsName]; }),
                HasSubstr("is not a plain name"));
  }
  EXPECT_THAT(after([](Json& json) { json["files"].erase(kRotationsName); }), HasSubstr("does not list"));
  EXPECT_THAT(after([](Json& json) { json["files"]["more.bin"] = json["files"][kRotationsName]; }),
              HasSubstr("more.bin: is missing"));
}

TEST_F(HostileBundle, HashesAndSizesMustMatch) {
  EXPECT_THAT(after([](Json& json) { json["files"][kRotationsName]["sha256"] = std::string(64, '0'); }),
              HasSubstr("sha256 is"));
  EXPECT_THAT(after([](Json& json) { json["files"][kRotationsName]["sha256"] = "zz"; }),
              HasSubstr("expected 64 hexadecimal digits"));
  EXPECT_THAT(after([](Json& json) { json["files"][kRotationsName]["bytes"] = 1; }), HasSubstr("the manifest says 1"));
}

TEST_F(HostileBundle, AnEditedModelCardIsAllowed) {
  write_file_atomic(dir_ / kCardName, "my own words");
  EXPECT_EQ(load_error(), "(no error)");
  fs::remove(dir_ / kCardName);
  EXPECT_EQ(load_error(), "(no error)");
}

TEST_F(HostileBundle, TruncatedAndFlippedRotations) {
  const std::string good = read_file(dir_ / kRotationsName);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, good.size() / 2, good.size() - 1}) {
    write_file_atomic(dir_ / kRotationsName, good.substr(0, size));
    EXPECT_THAT(load_error(), HasSubstr("the manifest says")) << size;
  }
  for (std::uint64_t n = 0; n < 50; ++n) {
    std::string bad = good;
    bad[random_bits(1, 2, n) % bad.size()] ^= static_cast<char>(1 << (n % 8));
    write_file_atomic(dir_ / kRotationsName, bad);
    EXPECT_THAT(load_error(), HasSubstr("sha256 is")) << n;
  }
  fs::remove(dir_ / kRotationsName);
  EXPECT_THAT(load_error(), HasSubstr("rotations.safetensors: is missing"));
  fs::create_directory(dir_ / kRotationsName);
  EXPECT_THAT(load_error(), HasSubstr("rotations.safetensors: is missing"));
}

TEST_F(HostileBundle, TruncatedAndFlippedManifestNeverCrashes) {
  const std::string good = read_file(dir_ / kManifestName);
  for (std::uint64_t n = 0; n < 300; ++n) {
    std::string bad = good;
    if (n % 3 == 0) {
      bad.resize(random_bits(3, 4, n) % good.size());
    } else {
      bad[random_bits(5, 6, n) % bad.size()] ^= static_cast<char>(1 << (random_bits(7, 8, n) % 8));
    }
    write_file_atomic(dir_ / kManifestName, bad);
    try {
      load_bundle(dir_);  // a flip inside free text may well load
    } catch (const InputError&) {
    }
  }
}

TEST_F(HostileBundle, TensorsMustBeWhatTheManifestSays) {
  EXPECT_EQ(with_tensors(tensors_of(small_bundle())), "(no error)");  // the helper itself changes nothing
  auto tensors = tensors_of(small_bundle());
  tensors.erase("layers.1.v.forward");
  EXPECT_THAT(with_tensors(tensors), HasSubstr("layers.1.v.forward"));
  tensors = tensors_of(small_bundle());
  tensors["layers.0.k.forward"] = at::eye(8).unsqueeze(0);
  EXPECT_THAT(with_tensors(tensors), HasSubstr("layers.0.k.forward is F32 [1, 8, 8], expected F32 [1, 16, 16]"));
  tensors = tensors_of(small_bundle());
  tensors["layers.0.k.forward"] = tensors["layers.0.k.forward"].to(at::kDouble);
  EXPECT_THAT(with_tensors(tensors), HasSubstr("is F64"));
  tensors = tensors_of(small_bundle());
  tensors["extra"] = at::ones({1});
  EXPECT_THAT(with_tensors(tensors), HasSubstr("holds the tensor 'extra'"));
}

TEST_F(HostileBundle, NumbersMustBeSound) {
  auto tensors = tensors_of(small_bundle());
  tensors["layers.1.v.forward"][0][0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(with_tensors(tensors), HasSubstr("layer 1 value rotation holds NaN"));
  tensors = tensors_of(small_bundle());
  tensors["layers.1.v.forward"] = tensors["layers.1.v.forward"] * 0.5;
  EXPECT_THAT(with_tensors(tensors), HasSubstr("layer 1 value rotation is not orthogonal"));
}

}  // namespace
}  // namespace oscar
