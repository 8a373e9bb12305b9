// Bundles with codebooks: what is written is read back, and every damage has a reason of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/hash.h"
#include "bundle/bundle.h"
#include "bundle/manifest.h"
#include "bundle/model_card.h"
#include "bundle_fixture.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

class CodebookBundle : public ::testing::Test {
 protected:
  // What loading says once `edit` has changed the codebook of layer 1 in the manifest.
  std::string after(const std::function<void(Json& json, Json& codebook)>& edit) {
    fs::remove_all(dir_);
    save_bundle(codebook_bundle(), dir_, false);
    Json json = read_json(dir_ / kManifestName);
    edit(json, json["layers"][1]["key"]["codebook"]);
    write_file_atomic(dir_ / kManifestName, dump_json(json));
    return message_of<InputError>([&] { load_bundle(dir_); });
  }
  // What check_bundle() says once `edit` has changed a codebook in memory.
  static std::string fault(const std::function<void(Codebook& codebook)>& edit) {
    Bundle bundle = codebook_bundle();
    auto changed = std::make_shared<Codebook>(*bundle.layers[1].key.codebook);
    changed->first = changed->first.clone();
    edit(*changed);
    bundle.layers[1].key.codebook = std::move(changed);
    const std::vector<std::string> faults = check_bundle(bundle);
    return faults.empty() ? "" : faults.front();
  }

  TempDirectory temp_;
  fs::path dir_ = temp_ / "bundle";
};

TEST_F(CodebookBundle, IsReadBackAsItWasWritten) {
  const Bundle written = codebook_bundle();
  save_bundle(written, dir_, false);
  EXPECT_EQ(read_json(dir_ / kManifestName)["format_version"], 4);
  const Bundle read = load_bundle(dir_);
  ASSERT_TRUE(read.layers[1].key.codebook && !read.layers[1].value.codebook);
  const Codebook &a = *written.layers[1].key.codebook, &b = *read.layers[1].key.codebook;
  EXPECT_TRUE(at::equal(a.first, b.first) && at::equal(a.second, b.second) && at::equal(a.errors, b.errors));
  EXPECT_EQ(b.scale, RowScale::kToken);
  EXPECT_EQ(b.type, CentroidType::kFloat16);
  EXPECT_TRUE(b.before_rope);
  // (4 + 2) bits for 4 channels and 16 for 2 x 16; values 2 bits and 32 for 16.
  EXPECT_DOUBLE_EQ(bundle_bits_per_element(read), 0.5 * (1.5 + 0.5 + 4.0));
  EXPECT_EQ(codebook_bytes(read.layers), 2u * 2 * (2 * 4 * 16 * 4 + 2 * 4 * 4 * 4));
  EXPECT_THAT(bundle_card(read), HasSubstr("no engine reads them"));
}

TEST_F(CodebookBundle, AnEarlierBundleWithoutErrorsIsRead) {
  Bundle bundle = codebook_bundle();
  for (LayerTransform& layer : bundle.layers) {
    auto plain = std::make_shared<Codebook>(*layer.key.codebook);
    plain->errors = plain->profile = at::Tensor();
    layer.key.codebook = std::move(plain);
  }
  save_bundle(bundle, dir_, false);
  EXPECT_FALSE(load_bundle(dir_).layers[0].key.codebook->errors.defined());
}

TEST_F(CodebookBundle, ASideMayHaveTwoLevels) {
  Bundle bundle = codebook_bundle();
  for (LayerTransform& layer : bundle.layers) layer.value.uniform_bits = 1;
  save_bundle(bundle, dir_, false);
  const Bundle read = load_bundle(dir_);
  EXPECT_EQ(read.layers[1].value.uniform_bits, 1);
  EXPECT_DOUBLE_EQ(bundle_bits_per_element(read), 0.5 * (1.5 + 0.5 + 3.0));
  EXPECT_THAT(after([](Json& j, Json&) { j["layers"][1]["value"]["bits"] = 3; }), HasSubstr("'bits' is 3"));
  EXPECT_THAT(after([](Json& j, Json&) { j["layers"][1]["key"]["bits"] = 1; }),
              HasSubstr("a side without 'widths' and 'codebook'"));
  save_bundle(small_bundle(), dir_, true);
  Json json = read_json(dir_ / kManifestName);
  json["layers"][1]["value"]["bits"] = 1;
  write_file_atomic(dir_ / kManifestName, dump_json(json));
  EXPECT_THAT(message_of<InputError>([&] { load_bundle(dir_); }), HasSubstr("1 bit without codebooks"));
}

TEST_F(CodebookBundle, SizesThatDoNotFitAreNamed) {
  EXPECT_THAT(after([](Json&, Json& c) { c["channels"] = 3; }), HasSubstr("groups of 3 channels do not divide"));
  EXPECT_THAT(after([](Json&, Json& c) { c["channels"] = 0; }), HasSubstr("'channels' is 0"));
  EXPECT_THAT(after([](Json&, Json& c) { c["centroids"] = 24; }),
              HasSubstr("'centroids' is 24, expected a power of two"));
  EXPECT_THAT(after([](Json&, Json& c) { c["centroids"] = 1 << 20; }), HasSubstr("expected 2 to 4096"));
  EXPECT_THAT(after([](Json&, Json& c) { c["second"] = 1; }), HasSubstr("'second' is 1"));
  EXPECT_THAT(after([](Json&, Json& c) { c["heads"] = 3; }), HasSubstr("expected 1 or the layer's 2 KV heads"));
  EXPECT_THAT(after([](Json&, Json& c) { c["scale"] = "row"; }), HasSubstr("'scale' is 'row'"));
  EXPECT_THAT(after([](Json&, Json& c) { c["type"] = "int8"; }), HasSubstr("expected one of 'float16', 'float8_e5m2'"));
  for (const char* member : {"heads", "channels", "centroids", "scale", "type"}) {
    EXPECT_THAT(after([&](Json&, Json& c) { c.erase(member); }), HasSubstr(member));
  }
}

TEST_F(CodebookBundle, WhatContradictsItselfIsRefused) {
  EXPECT_THAT(after([](Json&, Json& c) { c["centroids"] = 32; }), HasSubstr("expected F32 [2, 4, 32, 4]"));
  EXPECT_THAT(after([](Json&, Json& c) { c.erase("second"); }), HasSubstr("which the manifest does not mention"));
  EXPECT_THAT(after([](Json&, Json& c) { c.erase("errors"); }), HasSubstr("which the manifest does not mention"));
  EXPECT_THAT(after([](Json& j, Json&) { j["code"]["layout"] = "uniform"; }), HasSubstr("expected 'codebook'"));
  EXPECT_THAT(after([](Json& j, Json& c) { j["layers"][1]["value"]["codebook"] = c; }), HasSubstr("is for keys"));
  EXPECT_THAT(after([](Json& j, Json&) {
                j["layers"][1]["key"]["widths"] = {2, 2, 2, 2};
              }),
              HasSubstr("both 'widths' and a 'codebook'"));
  EXPECT_THAT(after([](Json& j, Json&) { j["layers"][1]["key"]["codebook"] = 7; }), HasSubstr("codebook"));
  EXPECT_THAT(after([](Json&, Json& c) { c["before_rope"] = false; }), HasSubstr("changed after the fit"));
}

TEST_F(CodebookBundle, NumbersAreThoseOfTheirType) {
  EXPECT_EQ(fault([](Codebook&) {}), "");
  EXPECT_THAT(fault([](Codebook& c) { c.first[0][0][0][0] = std::numeric_limits<float>::quiet_NaN(); }),
              HasSubstr("NaN or infinity"));
  EXPECT_THAT(fault([](Codebook& c) { c.first[0][0][0][0] = 1.0001f; }), HasSubstr("that are not float16"));
  EXPECT_THAT(fault([](Codebook& c) { c.type = CentroidType::kFloat8E5M2; }), HasSubstr("that are not float8_e5m2"));
  EXPECT_THAT(fault([](Codebook& c) { c.first[0][0][0][0] = 1e30f; }), HasSubstr("that are not float16"));
  EXPECT_THAT(fault([](Codebook& c) { c.second = c.second.narrow(3, 0, 2); }), HasSubstr("wrong shape"));
  EXPECT_THAT(fault([](Codebook& c) { c.first = at::Tensor(); }), HasSubstr("wrong shape"));
  EXPECT_THAT(fault([](Codebook& c) { c.errors = c.errors.narrow(2, 0, 8); }), HasSubstr("errors of a wrong shape"));
  EXPECT_THAT(fault([](Codebook& c) { c.profile = at::Tensor(); }), HasSubstr("errors of a wrong shape"));
  EXPECT_THAT(fault([](Codebook& c) { c.errors = -c.errors; }), HasSubstr("no mean squares"));
  EXPECT_THAT(fault([](Codebook& c) { c.profile = c.profile / 0.0; }), HasSubstr("no mean squares"));
}

}  // namespace
}  // namespace oscar
