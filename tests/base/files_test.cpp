#include "base/files.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TempDirectory dir;
  write_file_atomic(dir / "a", "old");
  {
    AtomicFile file(dir / "a");
    file.write("half");
  }
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator{}), 1);
}

TEST(AtomicFile, ReplacesOnCommit) {
  const TempDirectory dir;
  write_file_atomic(dir / "a", "old");
  write_file_atomic(dir / "a", "new");
  EXPECT_EQ(read_file(dir / "a"), "new");
}

TEST(AtomicFile, APlaceBelowAFileIsAnEnvironmentError) {
  const TempDirectory dir;
  write_file_atomic(dir / "file", "x");
  EXPECT_THROW(write_file_atomic(dir / "file" / "a", "x"), EnvironmentError);
}

TEST(Files, ReadRefusesDirectoriesMissingAndLargeFiles) {
  const TempDirectory dir;
  EXPECT_THROW(read_file(dir.path()), InputError);
  EXPECT_THROW(read_file(dir / "none"), InputError);
  write_file_atomic(dir / "a", "12345");
  EXPECT_THROW(read_file(dir / "a", 4), InputError);
}

TEST(FileLock, SecondHolderIsRefused) {
  const TempDirectory dir;
  const FileLock first(dir / "lock");
  EXPECT_THROW(FileLock second(dir / "lock"), EnvironmentError);
}

TEST(Files, RequireAbsent) {
  const TempDirectory dir;
  EXPECT_NO_THROW(require_absent(dir / "a", false));
  write_file_atomic(dir / "a", "x");
  EXPECT_THROW(require_absent(dir / "a", false), UsageError);
  EXPECT_NO_THROW(require_absent(dir / "a", true));
}

}  // namespace
}  // namespace oscar
