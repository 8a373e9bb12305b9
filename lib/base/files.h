// Files: reading, read-only maps, atomic writes, locks. Every function throws InputError (missing or unreadable file)
// or EnvironmentError (disk full, no permission). The message contains the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace oscar {

namespace fs = std::filesystem;

// Whether something, or a folder, is at this path. InputError if that cannot be seen, as in a folder without
// permission.
bool path_exists(const fs::path& path);
bool folder_exists(const fs::path& path);

// kRefuse: InputError when the file is a link. For the files of a run, since others may write in a shared directory.
enum class Links { kFollow, kRefuse };

// Reads an entire file. InputError for one larger than max_bytes.
std::string read_file(const fs::path& path, std::uint64_t max_bytes = std::uint64_t{1} << 32,
                      Links links = Links::kFollow);

// Read-only memory map of an entire file. An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path, Links links = Links::kFollow);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Copies bytes of a map by reading its file. This is faster than first-time page faults and leaves no pages mapped.
// Bytes outside any map are copied directly. InputError when the file has become shorter.
void read_mapped(std::span<const std::byte> from, std::byte* to);
// The same with several threads when there is much to read.
void read_mapped_by_threads(std::span<const std::byte> from, std::byte* to);

// Writes to a temporary file beside `path`. commit() syncs it and renames it to `path`; without commit(), `path` does
// not change.
// durable: false for a file that is read back soon and need not survive a power cut.
// Creates parent folders and keeps the mode of a replaced file. UsageError for links, devices and pipes
// (output_file.h).
class AtomicFile {
 public:
  explicit AtomicFile(const fs::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Writes the parts in order, with several threads when there is much to write.
  void write(std::span<const std::span<const std::byte>> parts);
  void commit(bool durable = true);
  const fs::path& temporary_path() const { return temporary_; }

 private:
  fs::path path_, temporary_;
  int fd_ = -1;
  std::uint64_t written_ = 0;
};

void write_file_atomic(const fs::path& path, std::string_view content);

// Creates a directory and its parents. EnvironmentError when it cannot.
void make_directory(const fs::path& path);

// UsageError when `path` exists and `overwrite` is false. Call it before any long work.
void require_absent(const fs::path& path, bool overwrite);

// An advisory lock on a file, held until destruction. Creates the file when missing and follows no link.
// EnvironmentError "another run uses ..." when another process holds the lock.
class FileLock {
 public:
  explicit FileLock(const fs::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

std::string format_bytes(std::uint64_t bytes);  // "1.5 GiB"

}  // namespace oscar
