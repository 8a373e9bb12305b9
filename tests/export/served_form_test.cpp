// What each format makes of a bundle, and which reports may stand beside exported files.
#include "export/served_form.h"

#include <gtest/gtest.h>

#include "bundle/bundle_fixture.h"
#include "export/export_format.h"
#include "export/export_report.h"

namespace oscar {
namespace {

Bundle with_clips(std::vector<float> key, std::vector<float> value) {
  Bundle bundle = small_bundle(static_cast<std::int64_t>(key.size()));
  for (std::size_t i = 0; i < key.size(); ++i) {
    bundle.layers[i].key.clip = {key[i]};
    bundle.layers[i].value.clip = {value[i]};
  }
  bundle.global_key_clip = 0.652f, bundle.global_value_clip = 0.871f;
  return bundle;
}

TEST(ServedForm, PublishedFilesCarryOnePairOfClipRatios) {
  const Bundle fitted = with_clips({0.84f, 0.434f}, {0.902f, 0.871f});
  const ServedForm form = served_form(fitted, "sglang-branch");
  ASSERT_EQ(form.changes.size(), 2U);
  EXPECT_NE(form.changes[0].find("keys of all layers, 0.652, in place of the bundle's 0.434 to 0.84"),
            std::string::npos)
      << form.changes[0];
  EXPECT_NE(form.changes[1].find("values of all layers, 0.871"), std::string::npos) << form.changes[1];
  for (const LayerTransform& layer : form.bundle.layers) {
    EXPECT_EQ(layer.key.clip, std::vector<float>{0.652f});
    EXPECT_EQ(layer.value.clip, std::vector<float>{0.871f});
  }
  EXPECT_EQ(fitted.layers[0].key.clip, std::vector<float>{0.84f});  // what was fitted is left alone
}

TEST(ServedForm, OneClipInAllLayersLosesNothing) {
  const Bundle fitted = with_clips({0.652f, 0.652f}, {0.871f, 0.871f});
  EXPECT_TRUE(served_form(fitted, "sglang-branch").changes.empty());
  EXPECT_EQ(lossless_form(fitted).format, "sglang-branch");
}

TEST(ServedForm, RatiosThatAreOffAreTheSame) {
  Bundle fitted = with_clips({0.0f, 1.0f}, {0.871f, 0.871f});
  fitted.global_key_clip = 0.0f;
  EXPECT_TRUE(served_form(fitted, "sglang-branch").changes.empty());
}

TEST(ServedForm, LayerClipsNeedTheBundleItself) {
  const ServedForm form = lossless_form(with_clips({0.84f, 0.434f}, {0.871f, 0.871f}));
  EXPECT_EQ(form.format, "transformers");
  EXPECT_TRUE(form.changes.empty());
  EXPECT_EQ(form.bundle.layers[1].key.clip, std::vector<float>{0.434f});
}

TEST(ServedForm, EnginesOfPublishedFilesEncodeByMinMax) {
  Bundle fitted = with_clips({0.652f, 0.652f}, {0.871f, 0.871f});
  fitted.encoder = "search";
  const ServedForm form = served_form(fitted, "sglang-branch");
  ASSERT_EQ(form.changes.size(), 1U);
  EXPECT_NE(form.changes[0].find("minmax in place of search"), std::string::npos);
  EXPECT_EQ(form.bundle.encoder, "minmax");
  EXPECT_EQ(lossless_form(fitted).format, "transformers");
}

TEST(ServedForm, AMatrixForEachHeadNeedsVersion2) {
  Bundle fitted = small_bundle(2, 16, 2, true);
  for (LayerTransform& layer : fitted.layers) layer.key.clip = {0.96f, 0.96f}, layer.value.clip = {0.92f, 0.92f};
  EXPECT_EQ(lossless_form(fitted).format, "sglang-branch-v2");
  const std::string message = message_of<InputError>([&] { served_form(fitted, "sglang-branch"); });
  EXPECT_NE(message.find("sglang-branch-v2"), std::string::npos) << message;
}

TEST(ServedForm, BlocksAndOddWindowsAreCarriedByTheBundleAlone) {
  EXPECT_EQ(lossless_form(blocks_bundle()).format, "transformers");
  Bundle fitted = with_clips({0.652f, 0.652f}, {0.871f, 0.871f});
  fitted.windows = {60, 256};
  EXPECT_EQ(lossless_form(fitted).format, "transformers");
  EXPECT_NE(message_of<InputError>([&] { served_form(fitted, "sglang-branch"); }).find("multiples of 8"),
            std::string::npos);
}

TEST(ServedForm, VllmNeedsWhatItsKernelsHave) {
  EXPECT_TRUE(served_form(small_bundle(2, 64), "vllm").changes.empty());
  const auto refused = [](auto change) {
    Bundle bundle = blocks_bundle(2, 64);
    for (LayerTransform& layer : bundle.layers) layer.value = layer.key;
    served_form(bundle, "vllm");  // it is sound before the change
    change(bundle);
    return message_of<InputError>([&] { served_form(bundle, "vllm"); });
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"head_dim 80", refused([](Bundle& b) { b.layers[1].head_dim = 80; })},
      {"two layouts", refused([](Bundle& b) { b.layers[1].value.widths.clear(); })},
      {"windows of 64 and 2000", refused([](Bundle& b) { b.windows.recent = 2000; })},
      {"17 query heads", refused([](Bundle& b) { b.model["query_heads"] = 34; })}};
  for (const auto& [word, message] : cases) EXPECT_NE(message.find(word), std::string::npos) << message;
  Bundle rotated = blocks_bundle(2, 64);
  for (LayerTransform& layer : rotated.layers) layer.value = layer.key, layer.key.rotated_mean = true;
  EXPECT_TRUE(served_form(rotated, "vllm").changes.empty());
  for (LayerTransform& layer : rotated.layers) layer.key.widths.clear(), layer.value.widths.clear();
  EXPECT_NE(message_of<InputError>([&] { served_form(rotated, "vllm"); }).find("before RoPE"), std::string::npos);
  Bundle groups = small_bundle(2, 64);
  groups.quant_group = 32;
  EXPECT_NE(message_of<InputError>([&] { served_form(groups, "vllm"); }).find("groups of 32"), std::string::npos);
}

TEST(ServedForm, VllmAndTheHubCarryLatentsThatHaveKernels) {
  Bundle small = latent_bundle(2, 64), bundle = latent_bundle(1, 512, 64);
  EXPECT_EQ(lossless_form(small).format, kSimulatedForm);
  for (const ExportFormat& format : export_formats()) {
    const std::string said = message_of<InputError>([&] { served_form(small, format.id); });
    const bool carried = format.id == "vllm" || format.id == "hub";
    const std::string why = carried ? "layer 0 of the bundle has latents of 64 channels and 4 with RoPE; the kernels"
                                    : "the bundle is for latent attention (MLA), which format " + format.id;
    EXPECT_NE(said.find(why), std::string::npos) << said;
  }
  bundle.model["query_heads"] = 128;
  EXPECT_NE(message_of<InputError>([&] { served_form(bundle, "vllm"); }).find("fit with --method waterfill"),
            std::string::npos);
  for (LayerTransform& layer : bundle.layers) {
    layer.key.widths = {4, 2, 1, 1};
    layer.key.sigma = at::rand({1, 4}) + 0.5;
    layer.value = as_value_side(layer.key);
  }
  EXPECT_EQ(lossless_form(bundle).format, "vllm");
  EXPECT_TRUE(served_form(bundle, "hub").changes.empty());
  EXPECT_NE(message_of<InputError>([&] { served_form(bundle, "sglang"); }).find("format vllm does"), std::string::npos);
}

TEST(ServedForm, UnknownFormatsAreRefusedWithTheList) {
  const std::string message = message_of<UsageError>([&] { served_form(small_bundle(), "tensorrt"); });
  EXPECT_NE(
      message.find("sglang-branch, sglang-branch-v2, sglang-branch-v3, transformers, vllm, sglang, hub, absorbed"),
      std::string::npos)
      << message;
}

// ---- reports

const std::map<std::string, std::string> kFiles = {{kManifestName, std::string(64, 'b')},
                                                   {kRotationsName, std::string(64, 'c')}};

Json report_of(const Bundle& bundle, const std::string& format) {
  const Json entry = {
      {"row", "oscar"}, {"sha256", kFiles}, {"served_as", {{"format", format}, {"changes", Json::array()}}}};
  return {{"format_version", 2},
          {"model", {{"fingerprint", bundle.model_fingerprint}}},
          {"windows", {{"sink", bundle.windows.sink}, {"recent", bundle.windows.recent}}},
          {"bundles", Json::array({entry})},
          {"gates", Json::array({{{"name", "max_kl"}, {"method", "oscar"}, {"pass", true}}})},
          {"self_checks", Json::array({{{"name", "drift"}, {"pass", nullptr}}})}};
}

std::string refusal(const Json& report, const ServedForm& form) {
  return message_of<InputError>([&] { check_export_report(report, "r.json", form, kFiles); });
}

TEST(ExportReport, TheSameBundleInTheSameFormIsTaken) {
  const Bundle fitted = with_clips({0.84f, 0.434f}, {0.902f, 0.871f});
  EXPECT_EQ(refusal(report_of(fitted, "sglang-branch"), served_form(fitted, "sglang-branch")), "(no error)");
}

TEST(ExportReport, AnotherFormIsRefusedWithWhatItChanges) {
  const Bundle fitted = with_clips({0.84f, 0.434f}, {0.902f, 0.871f});
  const std::string message = refusal(report_of(fitted, "transformers"), served_form(fitted, "sglang-branch"));
  for (const char* word : {"'transformers'", "0.434 to 0.84", "--as sglang-branch", "--for sglang-branch"}) {
    EXPECT_NE(message.find(word), std::string::npos) << word << " in " << message;
  }
}

TEST(ExportReport, OtherBundlesFailedGatesAndOldReportsAreRefused) {
  const Bundle fitted = with_clips({0.652f, 0.652f}, {0.871f, 0.871f});
  const ServedForm form = served_form(fitted, "sglang-branch");
  Json report = report_of(fitted, "sglang-branch");
  report["format_version"] = 1;
  EXPECT_NE(refusal(report, form).find("has report format 1, this program reads format 2"), std::string::npos);
  report = report_of(fitted, "sglang-branch");
  report["bundles"][0]["sha256"][kManifestName] = std::string(64, 'd');
  EXPECT_NE(refusal(report, form).find("another bundle"), std::string::npos);
  report = report_of(fitted, "sglang-branch");
  report["bundles"][0]["sha256"].erase(kRotationsName);
  EXPECT_NE(refusal(report, form).find("another bundle"), std::string::npos);
  report = report_of(fitted, "sglang-branch");
  report["gates"][0]["pass"] = false;
  EXPECT_NE(refusal(report, form).find("gate 'max_kl' failed"), std::string::npos);
  report["gates"][0]["method"] = "other";  // the gate of another bundle of the run
  EXPECT_EQ(refusal(report, form), "(no error)");
  report["self_checks"][0]["pass"] = false;
  EXPECT_NE(refusal(report, form).find("check 'drift' failed"), std::string::npos);
  report = report_of(fitted, "sglang-branch");
  report["bundles"][0].erase("served_as");
  EXPECT_NE(refusal(report, form).find("served_as"), std::string::npos);
  report = report_of(fitted, "sglang-branch");
  report["windows"]["recent"] = fitted.windows.recent + 64;
  EXPECT_NE(refusal(report, form).find("the bundle is served with"), std::string::npos);
  report = report_of(fitted, "sglang-branch");
  report["model"]["fingerprint"] = "another";
  EXPECT_NE(refusal(report, form).find("another model"), std::string::npos);
  for (const char* key : {"model", "windows", "bundles", "gates", "self_checks"}) {
    report = report_of(fitted, "sglang-branch");
    report[key] = 7;
    EXPECT_NE(refusal(report, form).find("r.json"), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace oscar
