// The directories for vLLM and SGLang: the bundle byte for byte, and a card whose command names it and the model.
#include "export/vllm_export.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "base/hash.h"
#include "bundle/bundle_fixture.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

TEST(VllmExport, HoldsTheBundleAndTheCommand) {
  const TempDirectory work;
  const Bundle bundle = small_bundle(2, 64);
  save_bundle(bundle, work.path() / "bundle", false);
  ExportOptions options;
  options.bundle = work.path() / "bundle", options.model_path = "org/a model", options.tool_version = "1";
  const ExportFormat& format = written_format("vllm");
  const ServedForm form = served_form(bundle, "vllm");
  EXPECT_EQ(vllm_plan(form, options), "a bundle of 2 layers with the command for vLLM 0.33");
  const std::vector<std::string> names = write_vllm(format, form, work.path() / "out", options);
  for (const std::string name : {"README.md", "SHA256SUMS", "oscar_bundle/oscar_bundle.json"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  EXPECT_EQ(sha256_file(work.path() / "out/oscar_bundle/oscar_bundle.json"),
            sha256_file(work.path() / "bundle/oscar_bundle.json"));
  EXPECT_NO_THROW(load_bundle(work.path() / "out/oscar_bundle"));
  const std::string card = read_file(work.path() / "out/README.md");
  for (const char* word : {"OSCAR_KV_BUNDLE=\"$PWD\"/oscar_bundle vllm serve 'org/a model' \\\n",
                           "--kv-cache-dtype oscar --attention-backend OSCAR --no-enable-prefix-caching", "vLLM 0.33.x",
                           "stay in BF16", "oscar-verify --as vllm"}) {
    EXPECT_NE(card.find(word), std::string::npos) << word << "\n" << card;
  }
  EXPECT_THROW(write_vllm(format, form, work.path() / "out", options), UsageError);
}

TEST(VllmExport, SglangHasItsOwnCommand) {
  const TempDirectory work;
  const Bundle bundle = small_bundle(2, 64);
  save_bundle(bundle, work.path() / "bundle", false);
  ExportOptions options;
  options.bundle = work.path() / "bundle", options.model_path = "org/a model", options.tool_version = "1";
  const ServedForm form = served_form(bundle, "sglang-plugin");
  EXPECT_TRUE(form.changes.empty());
  EXPECT_EQ(sglang_plugin_plan(form, options), "a bundle of 2 layers with the command for SGLang 0.5.23");
  write_sglang_plugin(written_format("sglang-plugin"), form, work.path() / "out", options);
  EXPECT_EQ(sha256_file(work.path() / "out/oscar_bundle/oscar_bundle.json"),
            sha256_file(work.path() / "bundle/oscar_bundle.json"));
  const std::string card = read_file(work.path() / "out/README.md");
  for (const char* word :
       {"OSCAR_KV_BUNDLE=\"$PWD\"/oscar_bundle sglang serve 'org/a model' \\\n",
        "--attention-backend oscar --page-size 64 --max-running-requests 32", "SGLang 0.5.23, which finds it",
        "not measured on a GPU", "oscar-verify --as sglang-plugin"}) {
    EXPECT_NE(card.find(word), std::string::npos) << word << "\n" << card;
  }
  Bundle wide = small_bundle(2, 96);
  const auto reason = vllm_unsupported(written_format("sglang-plugin"), wide);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("the kernels that SGLang needs"), std::string::npos) << *reason;
}

}  // namespace
}  // namespace oscar
