#include "base/files.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

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

// More than one thread writes, pieces of all sizes, between writes of one.
TEST(AtomicFile, PartsStandOneBehindTheOther) {
  std::string text(std::size_t{100} << 20, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>((i * 2654435761u) >> 13);
  std::vector<std::span<const std::byte>> parts;
  std::size_t at = 0;
  for (const std::size_t size : {std::size_t{1}, std::size_t{0}, std::size_t{5000}, std::size_t{60} << 20,
                                 (std::size_t{4} << 20) + 3, std::size_t{30} << 20}) {
    parts.push_back(std::as_bytes(std::span<const char>(text.data() + at, size)));
    at += size;
  }
  const TempDirectory dir;
  AtomicFile file(dir / "a");
  file.write("before");
  file.write(parts);
  file.write("between");
  file.write(std::span<const std::span<const std::byte>>(parts.data(), 3));
  file.write("behind");
  file.commit();
  EXPECT_TRUE(read_file(dir / "a") == "before" + text.substr(0, at) + "between" + text.substr(0, 5001) + "behind");
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
std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  return bytes;
}

TEST(ReadMapped, GivesTheBytesOfTheFile) {
  const TempDirectory dir;
  for (const std::size_t size : {std::size_t{1}, std::size_t{1} << 20, (std::size_t{5} << 20) + 3}) {
    const std::vector<std::byte> bytes = some_bytes(size);
    write_file_atomic(dir / "f", {reinterpret_cast<const char*>(bytes.data()), size});
    const MappedFile file(dir / "f");
    for (const std::size_t first : {std::size_t{0}, size / 3}) {
      std::vector<std::byte> read(size - first), alone = read;
      read_mapped(file.bytes().subspan(first), alone.data());
      read_mapped_by_threads(file.bytes().subspan(first), read.data());
      EXPECT_TRUE(std::equal(read.begin(), read.end(), bytes.begin() + static_cast<std::ptrdiff_t>(first)));
      EXPECT_TRUE(read == alone);
    }
  }
  const std::vector<std::byte> bytes = some_bytes(100);  // of no file
  std::vector<std::byte> copy(100);
  read_mapped(bytes, copy.data());
  EXPECT_TRUE(copy == bytes);
}

TEST(ReadMapped, RefusesAFileThatBecameShorter) {
  const TempDirectory dir;
  const std::vector<std::byte> bytes = some_bytes(std::size_t{6} << 20);
  write_file_atomic(dir / "f", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const MappedFile file(dir / "f");
  fs::resize_file(dir / "f", bytes.size() / 2);
  std::vector<std::byte> read(bytes.size());
  for (const auto call : {read_mapped, read_mapped_by_threads}) {
    try {
      call(file.bytes(), read.data());
      FAIL() << "no error";
    } catch (const InputError& e) {
      EXPECT_EQ(std::string(e.what()), (dir / "f").string() +
                                           ": became shorter while it was read, or its disk failed; run again when "
                                           "nothing writes to it");
    }
  }
  read_mapped_by_threads(file.bytes().first(bytes.size() / 2), read.data());  // the threads go on
  EXPECT_TRUE(std::equal(read.begin(), read.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.begin()));
}

}  // namespace oscar
