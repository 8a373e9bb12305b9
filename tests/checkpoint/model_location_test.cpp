#include "checkpoint/model_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/hub_cache.h"
#include "support/message_of.h"

namespace oscar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kFolder[] = "models--org--name";
const std::string kOne(40, 'a'), kTwo(40, 'b');

class ModelLocationTest : public ::testing::Test {
 protected:
  ModelLocationTest()
      : hub_(dir_ / "hub"),
        hub_variable_("HF_HUB_CACHE", (dir_ / "hub").c_str()),
        home_variable_("HF_HOME", nullptr),
        xdg_variable_("XDG_CACHE_HOME", nullptr) {
    hub_.add(kFolder, kOne, "config.json", "{}");
    hub_.add(kFolder, kTwo, "config.json", "{}");
    hub_.set_ref(kFolder, "main", kOne + "\n");
    hub_.set_ref(kFolder, "pr/7", kTwo);
  }
  std::string refusal(const std::string& model, const std::string& revision = "") {
    return message_of([&] { locate_model(model, revision); });
  }

  TempDirectory dir_;
  HubCache hub_;
  ScopedVariable hub_variable_, home_variable_, xdg_variable_;
};

TEST_F(ModelLocationTest, PlainDirectory) {
  fs::create_directory(dir_ / "model");
  EXPECT_THAT(refusal(dir_ / "model"), HasSubstr("has no config.json"));
  write_file_atomic(dir_ / "model" / "config.json", "{}");
  for (const std::string suffix : {"", "/", "/.", "/../model"}) {
    const ModelLocation found = locate_model((dir_ / "model").string() + suffix);
    EXPECT_EQ(found.name, "model") << suffix;
    EXPECT_EQ(found.revision, "");
    EXPECT_TRUE(fs::equivalent(found.directory, dir_ / "model"));
  }
  EXPECT_THAT(refusal(dir_ / "model", "main"), HasSubstr("which has no revision 'main'"));
}

TEST_F(ModelLocationTest, GgufIsNamed) {
  fs::create_directory(dir_ / "model");
  write_file_atomic(dir_ / "model" / "a.gguf", "GGUF");
  const std::string folder = (dir_ / "model").string();
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("has no config.json"), HasSubstr("GGUF is not read: load it in")));
  EXPECT_THAT(refusal(folder + "/a.gguf"), AllOf(HasSubstr("is a file"), HasSubstr("GGUF is not read: load it in")));
}

TEST_F(ModelLocationTest, FilesAndAdaptersAreNoModels) {
  fs::create_directory(dir_ / "model");
  const std::string folder = (dir_ / "model").string();
  write_file_atomic(dir_ / "model" / "model.safetensors", "x");
  EXPECT_THAT(refusal(folder + "/model.safetensors"), HasSubstr("is a file, expected the directory"));
  write_file_atomic(dir_ / "model" / "adapter_config.json", "{}");
  EXPECT_THAT(refusal(folder), HasSubstr("holds an adapter and no model; merge it"));
}

TEST_F(ModelLocationTest, BranchCommitAndPullRequest) {
  const fs::path snapshots = hub_.repository(kFolder) / "snapshots";
  const ModelLocation main = locate_model("org/name");
  EXPECT_EQ(main.directory, snapshots / kOne);
  EXPECT_EQ(main.name, "org/name");
  EXPECT_EQ(main.revision, kOne);
  EXPECT_EQ(locate_model("org/name", "main").revision, kOne);
  EXPECT_EQ(locate_model("org/name", "pr/7").revision, kTwo);
  EXPECT_EQ(locate_model("org/name", kTwo).directory, snapshots / kTwo);
  EXPECT_EQ(read_file(main.directory / "config.json"), "{}");  // through the link into blobs
}

TEST_F(ModelLocationTest, ModelWithoutAnOrganization) {
  hub_.add("models--gpt", kOne, "config.json", "{}");
  hub_.set_ref("models--gpt", "main", kOne);
  EXPECT_EQ(locate_model("gpt").name, "gpt");
}

TEST_F(ModelLocationTest, OrderOfTheVariables) {
  HubCache second(dir_ / "home" / "hub");
  second.add("models--org--second", kOne, "config.json", "{}");
  second.set_ref("models--org--second", "main", kOne);
  const ScopedVariable home("HF_HOME", (dir_ / "home").c_str());
  EXPECT_THAT(refusal("org/second"), HasSubstr((dir_ / "hub").string()));  // HF_HUB_CACHE comes first
  {
    const ScopedVariable none("HF_HUB_CACHE", ""), older("HUGGINGFACE_HUB_CACHE", (dir_ / "older").c_str());
    EXPECT_THAT(refusal("org/second"), HasSubstr((dir_ / "older").string()));  // the older name comes before HF_HOME
  }
  {
    const ScopedVariable none("HF_HUB_CACHE", "");
    EXPECT_EQ(locate_model("org/second").directory, dir_ / "home" / "hub" / "models--org--second/snapshots" / kOne);
  }
  fs::create_directories(dir_ / "user/.cache/huggingface");
  fs::rename(dir_ / "home" / "hub", dir_ / "user/.cache/huggingface/hub");
  const ScopedVariable no_hub("HF_HUB_CACHE", nullptr), no_home("HF_HOME", nullptr);
  const ScopedVariable user("HOME", (dir_ / "user").c_str());
  EXPECT_EQ(locate_model("org/second").revision, kOne);
  const ScopedVariable tilde("HF_HOME", "~/.cache/huggingface");
  EXPECT_EQ(locate_model("org/second").revision, kOne);
}

TEST_F(ModelLocationTest, MissPrintsTheDownloadCommand) {
  EXPECT_THAT(refusal("org/absent"), AllOf(HasSubstr("hf download org/absent"), HasSubstr((dir_ / "hub").string())));
  EXPECT_THAT(refusal("org/name", "v2"), HasSubstr("hf download org/name --revision v2"));
  EXPECT_THAT(refusal("org/name", std::string(40, 'c')), HasSubstr("--revision cccc"));
  hub_.set_ref(kFolder, "gone", std::string(40, 'd'));  // the ref is there, its snapshot is not
  EXPECT_THAT(refusal("org/name", "gone"), HasSubstr("hf download org/name --revision gone"));
}

TEST_F(ModelLocationTest, PartialAndDanglingSnapshots) {
  hub_.add("models--org--part", kOne, "tokenizer.json", "{}");
  hub_.set_ref("models--org--part", "main", kOne);
  EXPECT_THAT(refusal("org/part"), AllOf(HasSubstr("has no config.json"), HasSubstr("hf download org/part")));
  fs::remove_all(hub_.repository(kFolder) / "blobs");
  EXPECT_THAT(refusal("org/name"), HasSubstr("has no config.json"));
}

TEST_F(ModelLocationTest, RefusesNamesThatAreNoModelNames) {
  for (const std::string name :
       {"../x",      "..",          ".",         "/org/name", "a/b/c",     "org/",        "/name",
        "org//name", "org/../name", "org/na me", "org/.name", "-org/name", "org--x/name", "org/na\nme",
        "~/model",   "org/name.",   "org\\name", "C:\\model", "",          "\xff"}) {
    EXPECT_THAT(refusal(name),
                ::testing::AnyOf(HasSubstr("form org/name"), HasSubstr("org/name"), HasSubstr("has no config.json")))
        << name;
    EXPECT_THAT(refusal(name), ::testing::Not(HasSubstr("hf download"))) << name;
  }
  EXPECT_THAT(refusal(std::string("org/na\0me", 9)), HasSubstr("NUL"));
  EXPECT_THAT(refusal(std::string(200, 'n')), HasSubstr("form org/name"));
}

TEST_F(ModelLocationTest, RefusesRevisionsThatLeaveTheCache) {
  write_file_atomic(dir_ / "secret", kOne);
  for (const std::string revision : {"../../../secret", "..", "/etc/passwd", "a//b", "a/../b", "x y", "."}) {
    EXPECT_THAT(refusal("org/name", revision), HasSubstr("no branch, tag or commit")) << revision;
  }
  hub_.set_ref(kFolder, "evil", "../../../../etc");
  EXPECT_THAT(refusal("org/name", "evil"), HasSubstr("expected a commit hash"));
  hub_.set_ref(kFolder, "empty", "");
  EXPECT_THAT(refusal("org/name", "empty"), HasSubstr("expected a commit hash"));
  hub_.set_ref(kFolder, "huge", std::string(10000, 'a'));
  EXPECT_THAT(refusal("org/name", "huge"), HasSubstr("larger than"));
  EXPECT_THAT(refusal("org/name", "pr"), HasSubstr("hf download"));  // a folder of refs, no ref
}

TEST_F(ModelLocationTest, CyclicLinksAreAMiss) {
  fs::create_directories(dir_ / "hub/models--org--cycle/snapshots");
  fs::create_symlink(kOne, dir_ / "hub/models--org--cycle/snapshots" / kOne);
  hub_.set_ref("models--org--cycle", "main", kOne);
  EXPECT_THAT(refusal("org/cycle"), HasSubstr("hf download org/cycle"));
  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_THAT(refusal((dir_ / "loop").string()), HasSubstr("neither a directory"));
}

}  // namespace
}  // namespace oscar
