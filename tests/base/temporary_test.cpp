#include "base/temporary.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "base/errors.h"
#include "base/files.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.insert(entry.path().filename().string());
  return found;
}

TEST(Temporary, NamesDifferAndAreToldFromOthers) {
  const std::string first = temporary_path("a/out").filename().string();
  EXPECT_NE(first, temporary_path("a/out").filename().string());
  EXPECT_TRUE(is_temporary_of(first, "out"));
  EXPECT_FALSE(is_temporary_of(first, "ou"));
  EXPECT_FALSE(is_temporary_of("out.tmp.1234", "out"));
  EXPECT_FALSE(is_temporary_of("out.tmp.0123456789abcdef0123456789abcdef", "out"));
  EXPECT_FALSE(is_temporary_of(first + "0", "out"));
}

TEST(Temporary, OfDeadRunsAreRemovedAndNothingElse) {
  const TempDirectory dir;
  const fs::path dead_file = temporary_path(dir / "out"), dead_folder = temporary_path(dir / "out");
  const fs::path other = temporary_path(dir / "other"), live = temporary_path(dir / "out");
  std::ofstream(dead_file) << "half";
  fs::create_directory(dead_folder);
  std::ofstream(dead_folder / "tensors") << "half";
  std::ofstream(other) << "of another output";
  std::ofstream(dir / "out.tmp.1234") << "of the user";
  std::ofstream(dir / "out.tmp.0123456789abcdef0123456789abcdef") << "of the user";
  fs::create_symlink(dir / "out.tmp.1234", temporary_path(dir / "out"));
  const int fd = ::open(live.c_str(), O_CREAT | O_RDWR, 0644);
  ASSERT_TRUE(lock_temporary(fd));
  std::set<std::string> kept = names(dir.path());
  kept.erase(dead_file.filename().string());
  kept.erase(dead_folder.filename().string());
  remove_stale_temporaries(dir / "out");
  EXPECT_EQ(names(dir.path()), kept);
  ::close(fd);
}

TEST(AtomicFile, KeepsTheModeOfWhatItReplaces) {
  const TempDirectory dir;
  write_file_atomic(dir / "private", "old");
  fs::permissions(dir / "private", fs::perms::owner_read | fs::perms::owner_write);
  write_file_atomic(dir / "private", "new");
  EXPECT_EQ(fs::status(dir / "private").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(read_file(dir / "private"), "new");
}

TEST(AtomicFile, ReplacesNothingButRegularFiles) {
  const TempDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  write_file_atomic(dir / "victim", "precious");
  fs::create_symlink(dir / "victim", dir / "link");
  fs::create_directory(dir / "folder");
  for (const char* name : {"pipe", "link", "folder"}) {
    EXPECT_THROW(write_file_atomic(dir / name, "x"), UsageError) << name;
  }
  EXPECT_THROW(write_file_atomic("/dev/null", "x"), UsageError);
  EXPECT_EQ(read_file(dir / "victim"), "precious");
  EXPECT_EQ(names(dir.path()), (std::set<std::string>{"folder", "link", "pipe", "victim"}));
}

TEST(AtomicFile, MakesTheFoldersAbove) {
  const TempDirectory dir;
  write_file_atomic(dir / "a" / "b" / "c.json", "x");
  EXPECT_EQ(read_file(dir / "a" / "b" / "c.json"), "x");
}

TEST(AtomicFile, RemovesWhatAKilledRunLeft) {
  const TempDirectory dir;
  std::ofstream(temporary_path(dir / "a")) << "half";
  write_file_atomic(dir / "a", "whole");
  EXPECT_EQ(names(dir.path()), std::set<std::string>{"a"});
}

TEST(FileLock, DoesNotFollowLinks) {
  const TempDirectory dir;
  fs::create_symlink(dir / "target", dir / "lock");
  EXPECT_THROW(const FileLock lock(dir / "lock"), EnvironmentError);
  EXPECT_FALSE(fs::exists(dir / "target"));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(const FileLock lock(dir / "pipe"), EnvironmentError);
}

TEST(Files, APipeIsRefusedWithoutWaiting) {
  const TempDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file(dir / "pipe"), InputError);
  EXPECT_THROW(MappedFile(dir / "pipe"), InputError);
}

// The first byte of the second page, which the file has lost.
void read_behind_the_end(const fs::path& path) {
  const MappedFile file(path);
  fs::resize_file(path, 100);
  volatile std::byte byte = file.bytes()[8192];
  static_cast<void>(byte);
}

TEST(MappedFileDeathTest, AFileThatShrinksEndsWithASentence) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const TempDirectory dir;
  write_file_atomic(dir / "weights", std::string(16384, 'x'));
  EXPECT_EXIT(read_behind_the_end(dir / "weights"), testing::ExitedWithCode(3), "weights: became shorter");
}

}  // namespace
}  // namespace oscar
