#include "base/file_roles.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

class FileRolesTest : public testing::Test {
 protected:
  FileRolesTest() {
    write_file_atomic(dir_ / "input", "text");
    write_file_atomic(dir_ / "other", "text");
    fs::create_directory(dir_ / "folder");
    write_file_atomic(dir_ / "folder" / "statistics", "text");
    fs::create_hard_link(dir_ / "input", dir_ / "hard");
    fs::create_symlink("input", dir_ / "soft");
    fs::create_directory_symlink(dir_.path(), dir_ / "folder" / "up");
  }
  bool refused(const fs::path& input, const fs::path& output, bool directory = false) const {
    FileRoles roles;
    roles.input(input);
    directory ? roles.output_directory(output, "-o") : roles.output(output, "-o");
    return is_refused(roles);
  }
  static bool is_refused(const FileRoles& roles) {
    try {
      roles.check();
      return false;
    } catch (const UsageError&) {
      return true;
    }
  }
  TempDirectory dir_;
};

TEST_F(FileRolesTest, AnInputIsNoOutputByAnyName) {
  for (const char* name : {"input", "./input", "folder/../input", "hard", "soft", "folder/up/input", "none/../input"}) {
    EXPECT_TRUE(refused(dir_ / "input", dir_ / name)) << name;
    EXPECT_TRUE(refused(dir_ / name, dir_ / "input") || !fs::exists(dir_ / name)) << name;
  }
  for (const char* name : {"other", "new", "folder/input", "folder/new"}) {
    EXPECT_FALSE(refused(dir_ / "input", dir_ / name)) << name;
  }
}

TEST_F(FileRolesTest, AFolderThatHoldsAnInputIsNoOutput) {
  EXPECT_TRUE(refused(dir_ / "folder" / "statistics", dir_ / "folder", true));
  EXPECT_TRUE(refused(dir_ / "folder" / "statistics", dir_ / "folder/", true));
  EXPECT_TRUE(refused(dir_ / "folder" / "statistics", dir_ / "folder" / "up", true));
  EXPECT_FALSE(refused(dir_ / "input", dir_ / "folder", true));
  EXPECT_FALSE(refused(dir_ / "input", dir_ / "new", true));
}

TEST_F(FileRolesTest, TwoOutputsAreNeverOne) {
  const auto both = [&](const fs::path& a, const fs::path& b) {
    FileRoles roles;
    roles.output(a, "--report");
    roles.output(b, "--html");
    return is_refused(roles);
  };
  EXPECT_TRUE(both(dir_ / "new", dir_ / "new"));
  EXPECT_TRUE(both(dir_ / "new", dir_ / "folder/../new"));
  EXPECT_TRUE(both(dir_ / "new", dir_ / "folder/up/new"));
  EXPECT_TRUE(both(dir_ / "a/b", dir_ / "a/./b"));
  EXPECT_TRUE(both(dir_ / "input", dir_ / "hard"));
  EXPECT_FALSE(both(dir_ / "new", dir_ / "newer"));
  EXPECT_FALSE(both(dir_ / "a/b", dir_ / "a/c"));
}

}  // namespace
}  // namespace oscar
