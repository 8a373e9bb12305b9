// What bundles made of published files take from the record that oscar-export leaves in them.
#include "export/published.h"

#include <gtest/gtest.h>

#include "bundle/bundle.h"
#include "bundle/bundle_fixture.h"

namespace oscar {
namespace {

std::string fingerprint(char digit) {
  std::string text = "v2:sha256:";
  return text.append(64, digit);
}

RotationFile identity_file(const std::string& objective) {
  RotationFile file;
  file.objective = objective;
  RotationLayer layer;
  layer.rotation = {{2, 2}, {1, 0, 0, 1}};
  file.layers = {layer};
  return file;
}

Json record() {
  return {{"model_fingerprint", fingerprint('a')},
          {"clip_ratio", {{"key", 0.652}, {"value", 0.871}}},
          {"windows", {{"sink", 32}, {"recent", 128}}},
          {"group", 2}};
}

Bundle bundle_of(const Json& key_record, const Json& value_record) {
  RotationFile key = identity_file("qqt_r_h_pbr"), value = identity_file("sst_r_h_pbr");
  if (!key_record.is_null()) key.extra["calibration"] = key_record;
  if (!value_record.is_null()) value.extra["calibration"] = value_record;
  return bundle_from_rotations(key, "k.pt", value, "v.pt");
}

TEST(Published, OurRecordIsUsed) {
  const Bundle bundle = bundle_of(record(), record());
  EXPECT_EQ(bundle.model_fingerprint, fingerprint('a'));
  EXPECT_EQ(bundle.layers[0].key.clip, std::vector<float>{0.652f});
  EXPECT_EQ(bundle.layers[0].value.clip, std::vector<float>{0.871f});
  EXPECT_EQ(bundle.windows.sink, 32);
  EXPECT_EQ(bundle.windows.recent, 128);
  EXPECT_EQ(bundle.quant_group, 2);
  EXPECT_TRUE(has_recorded_clip(bundle));
  EXPECT_EQ(published_format(bundle), "sglang-branch");
}

TEST(Published, FilesOfOtherProgramsHaveNone) {
  const Json theirs = {{"generation_id", 3}, {"group", "layer"}, {"windows", 5}};
  for (const Json& calibration : {Json(nullptr), theirs, Json("text")}) {
    const Bundle bundle = bundle_of(calibration, calibration);
    EXPECT_TRUE(bundle.model_fingerprint.empty());
    EXPECT_FALSE(has_recorded_clip(bundle));
    EXPECT_EQ(bundle.quant_group, 0);
    EXPECT_EQ(bundle.windows.recent, 256);
  }
}

TEST(Published, FilesOfTwoExportsAndUnsoundRecordsAreRefused) {
  Json other = record();
  other["clip_ratio"]["key"] = 0.7;
  EXPECT_NE(message_of<InputError>([&] { bundle_of(record(), other); }).find("not of one export"), std::string::npos);
  EXPECT_NE(message_of<InputError>([&] { bundle_of(record(), nullptr); }).find("not of one export"), std::string::npos);
  for (const Json& ratio : {Json(1.5), Json(-0.1), Json("0.9"), Json(nullptr)}) {
    Json bad = record();
    bad["clip_ratio"]["value"] = ratio;
    EXPECT_NE(message_of<InputError>([&] { bundle_of(bad, bad); }).find("k.pt"), std::string::npos) << ratio.dump();
  }
  Json bad = record();
  bad["windows"]["sink"] = -1;
  EXPECT_NE(message_of<InputError>([&] { bundle_of(bad, bad); }).find("sink"), std::string::npos);
}

TEST(Published, TheModelIsTheRecordedOne) {
  const Bundle bundle = bundle_of(record(), record());
  ModelConfig model;
  model.layers = 1, model.head_dim = 2, model.kv_heads = 4;  // one shared matrix does not say how many heads use it
  EXPECT_TRUE(check_bundle_model(bundle, model, bundle.model_fingerprint).empty());
  EXPECT_EQ(check_bundle_model(bundle, model, fingerprint('e')).size(), 1U);
}

}  // namespace
}  // namespace oscar
