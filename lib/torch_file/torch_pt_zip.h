// Reads the zip container of torch.save (PKWARE APPNOTE 6.3), with uncompressed entries only. It uses the central
// directory, because torch leaves the sizes in local headers at zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oscar {

class ZipReader {
 public:
  // `bytes` must outlive the reader. InputError for a damaged directory, compressed or encrypted entries, duplicate
  // names, or entries outside the file.
  ZipReader(std::span<const std::byte> bytes, std::string where);

  bool has(const std::string& name) const { return entries_.contains(name); }
  std::vector<std::string> names() const;  // sorted
  // The content. The first call checks its CRC. InputError when absent or damaged.
  std::span<const std::byte> read(const std::string& name);

 private:
  struct Entry {
    std::span<const std::byte> content;
    std::uint32_t crc = 0;
    bool checked = false;
  };
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);

  std::span<const std::byte> bytes_;
  std::string where_;
  std::map<std::string, Entry> entries_;
};

// Builds the container as torch does: stored entries in the given order, no timestamps. Each payload starts at a
// multiple of 64 bytes, so that readers can map it.
class ZipWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;
  explicit ZipWriter(Sink sink) : sink_(std::move(sink)) {}
  void add(const std::string& name, std::span<const std::byte> content);
  void add(const std::string& name, std::string_view content);
  // Writes the central directory. InputError when the file would need 64-bit offsets (4 GiB).
  void finish();

 private:
  struct Entry {
    std::string name;
    std::uint64_t offset = 0, size = 0;
    std::uint32_t crc = 0;
  };
  void write(std::string_view text);

  Sink sink_;
  std::uint64_t position_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace oscar
