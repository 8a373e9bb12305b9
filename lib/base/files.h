// Files: whole reads, read-only maps, atomic writes, locks. Every function throws InputError (the file is missing or
// unreadable) or EnvironmentError (disk full, no permission) with the path in the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace oscar {

namespace fs = std::filesystem;

// Reads a whole file; refuses one larger than max_bytes (InputError).
std::string read_file(const fs::path& path, std::uint64_t max_bytes = std::uint64_t{1} << 32);

// Read-only memory map of a whole file. An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Copies bytes of a map by reading its file, which is faster than touching pages for the first time and leaves none of
// them mapped. Bytes that belong to no map are copied as they are. InputError when the file has become shorter.
void read_mapped(std::span<const std::byte> from, std::byte* to);
// The same by several threads, for much of it.
void read_mapped_by_threads(std::span<const std::byte> from, std::byte* to);

// Writes beside `path` under a temporary name, then syncs and renames in commit(); without it `path` is left alone.
// durable: false for what is read a moment later and never again, which need not survive a power cut.
// Folders above are made, a replaced file hands its mode on; UsageError for links, devices and pipes (output_file.h).
class AtomicFile {
 public:
  explicit AtomicFile(const fs::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // One behind the other, by several threads where there is much to write.
  void write(std::span<const std::span<const std::byte>> parts);
  void commit(bool durable = true);
  const fs::path& temporary_path() const { return temporary_; }

 private:
  fs::path path_, temporary_;
  int fd_ = -1;
  std::uint64_t written_ = 0;
};

void write_file_atomic(const fs::path& path, std::string_view content);

// Creates a directory (and parents); EnvironmentError when it cannot.
void make_directory(const fs::path& path);

// Throws UsageError when `path` exists and overwriting was not asked for. Call it before any long work.
void require_absent(const fs::path& path, bool overwrite);

// An advisory lock on a file (created when absent, no link followed), held until destruction. EnvironmentError "another
// run uses ..." when another process holds it.
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
