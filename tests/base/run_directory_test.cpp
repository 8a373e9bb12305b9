#include "base/run_directory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/errors.h"
#include "support/message_of.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

const Json kRun = {{"tool_version", "1"}, {"threads", 2}, {"model", "m"}, {"options", {{"context", 512}}}};
const RunInputs kInputs = {{"model", "is of another model"}};

bool is_point(const std::string& name) { return name == "point"; }

RunDirectory open(const fs::path& path, bool resume) { return RunDirectory(path, kRun, resume, kInputs, is_point); }

TEST(RunDirectory, LeavesFilesOfOthersAlone) {
  const TempDirectory dir;
  std::ofstream(dir / "point") << "of the user";
  std::ofstream(dir / "notes") << "of the user";
  EXPECT_THROW(open(dir.path(), false), UsageError);
  EXPECT_THROW(open(dir.path(), true), UsageError);
  EXPECT_EQ(read_file(dir / "point"), "of the user");
  fs::remove(dir / "point");
  RunDirectory run = open(dir.path(), false);
  write_file_atomic(run.file("point"), "state");
  run.remove();
  EXPECT_EQ(read_file(dir / "notes"), "of the user");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator{}), 1);
}

TEST(RunDirectory, ARemovalThatWasCutShortIsFinished) {
  const TempDirectory dir;
  {
    RunDirectory run = open(dir.path(), false);
    write_file_atomic(run.file("point"), "state");
  }
  fs::rename(dir / "run.json", dir / "removing.json");
  const RunDirectory run = open(dir.path(), false);
  EXPECT_FALSE(fs::exists(dir / "point"));
  EXPECT_FALSE(run.resumed());
}

// Killed at any step of its removal, a run is still found, and gone after the next removal.
TEST(RunDirectory, TheRestOfARunIsFoundAtEveryStepOfItsRemoval) {
  EXPECT_FALSE(holds_run("/nowhere"));
  const std::vector<std::vector<const char*>> left = {
      {"run.json", "point", "lock"}, {"removing.json", "point", "lock"}, {"removing.json", "lock"}, {"lock"}, {}};
  for (const std::vector<const char*>& names : left) {
    const TempDirectory dir;
    const fs::path work = dir / "work";
    fs::create_directory(work);
    for (const char* name : names) {
      if (std::string_view(name) == "run.json") {
        write_file_atomic(work / name, kRun.dump());
      } else {
        write_file_atomic(work / name, "");
      }
    }
    EXPECT_TRUE(holds_run(work)) << names.size();
    open(work, true).remove();
    EXPECT_FALSE(fs::exists(work)) << names.size();
  }
  const TempDirectory dir;
  write_file_atomic(dir / "notes", "of the user");
  EXPECT_FALSE(holds_run(dir.path()));
}

TEST(RunDirectory, RefusesRunsOfAnotherForm) {
  for (const char* text :
       {"", "[]", "null", "1", "\"run\"", "{}", R"({"threads":"2"})", R"({"threads":2})",
        R"({"tool_version":"1","threads":0,"options":{}})", R"({"tool_version":"1","threads":-1,"options":{}})",
        R"({"tool_version":"1","threads":1e300,"options":{}})",
        R"({"tool_version":"1","threads":99999999999999999999,"options":{}})",
        R"({"tool_version":"1","threads":2,"options":[]})", R"({"tool_version":1,"threads":2,"options":{}})",
        R"({"tool_version":"1","threads":2,"options":{"context":512}})",
        R"({"tool_version":"1","threads":2,"model":["m"],"options":{"context":512}})"}) {
    const TempDirectory dir;
    write_file_atomic(dir / "run.json", text);
    EXPECT_THROW(open(dir.path(), true), InputError) << text;
  }
  for (const char* text : {R"({"tool_version":"2","threads":2,"model":"m","options":{"context":512}})",
                           R"({"tool_version":"1","threads":2,"model":"m","options":{"context":"512"}})",
                           R"({"tool_version":"1","threads":2,"model":"m","options":{}})"}) {
    const TempDirectory dir;
    write_file_atomic(dir / "run.json", text);
    EXPECT_THROW(open(dir.path(), true), UsageError) << text;
  }
}

// A file of a run with a changed character, of another run or behind a link is refused, and its target is not read.
TEST(RunDirectory, RefusesDamagedStateAndLinks) {
  const TempDirectory dir;
  const fs::path work = dir / "work", file = work / "point";
  const Json content = {{"values", {0.25, 1e-300, 3}}, {"text", "a\u202e"}};
  std::string good;
  {
    const RunDirectory run = open(work, false);
    EXPECT_EQ(run.load_json("point"), std::nullopt);
    run.save_json("point", content);
    good = read_file(file);
    const Json found = run.load_json("point").value();
    EXPECT_EQ(found["values"], content["values"]);
    EXPECT_EQ(found["text"], content["text"]);
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      write_file_atomic(file, bad);
      EXPECT_THROW(run.load_json("point"), InputError) << bad;
    }
    fs::remove(file);
    write_file_atomic(dir / "secret", good);
    fs::create_symlink(dir / "secret", file);
    EXPECT_THROW(run.load_json("point"), InputError);
  }
  const auto refusal = [&] { return message_of<InputError>([&] { open(work, true); }); };
  EXPECT_NE(refusal().find("point: is a link, which is not followed; remove it"), std::string::npos) << refusal();
  fs::remove(file);
  fs::rename(work / "run.json", dir / "run.json");
  fs::create_symlink(dir / "run.json", work / "run.json");
  EXPECT_NE(refusal().find("run.json: is a link"), std::string::npos) << refusal();
  write_file_atomic(dir / "run.json", "precious");
  EXPECT_EQ(refusal().find("precious"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace oscar
