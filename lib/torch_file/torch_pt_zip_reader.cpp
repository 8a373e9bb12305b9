#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/budget.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "torch_file/crc32.h"
#include "torch_file/torch_pt_zip.h"

namespace oscar {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;
constexpr std::uint32_t kIn64 = 0xffffffffu;  // the zip64 record has the value

// Little-endian fields of a byte range; every access is checked.
class Fields {
 public:
  Fields(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}
  template <typename T>
  T get(std::uint64_t offset) const {
    static_assert(std::is_unsigned_v<T>);
    T value;
    std::memcpy(&value, range(offset, sizeof value).data(), sizeof value);
    return value;
  }
  std::uint16_t u16(std::uint64_t offset) const { return get<std::uint16_t>(offset); }
  std::uint32_t u32(std::uint64_t offset) const { return get<std::uint32_t>(offset); }
  std::uint64_t u64(std::uint64_t offset) const { return get<std::uint64_t>(offset); }
  std::span<const std::byte> range(std::uint64_t offset, std::uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      throw InputError(where_ + ": the zip directory points outside the file; it is damaged or was not copied whole");
    }
    return bytes_.subspan(offset, size);
  }
  std::string text(std::uint64_t offset, std::uint64_t size) const {
    const auto r = range(offset, size);
    return {reinterpret_cast<const char*>(r.data()), r.size()};
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
};

// Offset of the end record: the last one whose comment ends exactly at the end of the file.
std::uint64_t find_end(const Fields& f, const std::string& where) {
  constexpr std::size_t kLongestComment = 65535;
  if (f.size() < 4 || f.u16(0) != (kLocal & 0xffff)) {
    const bool old_format = f.size() >= 2 && f.u16(0) == 0x0280;  // starts with a pickle of protocol 2
    throw InputError(where + (old_format
                                  ? ": is in the format torch.save had before version 1.6; load and save it again"
                                  : ": is no torch.save file (it does not begin as a zip file)"));
  }
  for (std::size_t back = kEndSize; back <= f.size() && back <= kEndSize + kLongestComment; ++back) {
    const std::uint64_t at = f.size() - back;
    if (f.u32(at) == kEnd && f.u16(at + 20) == back - kEndSize) return at;
  }
  throw InputError(where + ": has no zip directory; it is truncated");
}

// Size, compressed size and offset of a central entry. A value of 0xffffffff is replaced by the zip64 extra field (id
// 1).
struct Extent {
  std::uint64_t size, compressed, offset;
};
Extent read_extent(const Fields& f, std::uint64_t at, std::uint64_t extra, std::uint64_t extra_size) {
  Extent e{f.u32(at + 24), f.u32(at + 20), f.u32(at + 42)};
  std::uint64_t p = extra;
  while (p + 4 <= extra + extra_size) {
    const std::uint16_t id = f.u16(p), size = f.u16(p + 2);
    std::uint64_t field = p + 4;
    for (std::uint64_t* value : {&e.size, &e.compressed, &e.offset}) {
      if (id == 1 && *value == kIn64 && field + 8 <= p + 4 + size) {
        *value = f.u64(field);
        field += 8;
      }
    }
    p += 4u + size;
  }
  return e;
}

}  // namespace

ZipReader::ZipReader(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {
  const Fields f(bytes_, where_);
  const std::uint64_t end = find_end(f, where_);
  std::uint64_t count = f.u16(end + 10), size = f.u32(end + 12), offset = f.u32(end + 16);
  if (end >= kLocatorSize && f.u32(end - kLocatorSize) == kLocator64) {
    const std::uint64_t end64 = f.u64(end - kLocatorSize + 8);
    if (f.range(end64, kEnd64Size).empty() || f.u32(end64) != kEnd64) {
      throw InputError(where_ + ": the zip64 directory is damaged");
    }
    count = f.u64(end64 + 32);
    size = f.u64(end64 + 40);
    offset = f.u64(end64 + 48);
  }
  f.range(offset, size);
  read_directory(offset, size, count);
}

void ZipReader::read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count) {
  const Fields f(bytes_, where_);
  if (count > size / kCentralSize) throw InputError(where_ + ": the zip directory is shorter than its entries");
  std::uint64_t at = offset;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  // start and end of each entry, including the header
  for (std::uint64_t i = 0; i < count; ++i) {
    Budget::spend(300);
    if (f.u32(at) != kCentral) throw InputError(where_ + ": the zip directory is damaged");
    const std::uint16_t flags = f.u16(at + 8), method = f.u16(at + 10);
    const std::uint64_t name_size = f.u16(at + 28), extra_size = f.u16(at + 30), comment_size = f.u16(at + 32);
    const std::string name = f.text(at + kCentralSize, name_size);
    const Extent e = read_extent(f, at, at + kCentralSize + name_size, extra_size);
    if (method != 0 || (flags & 1) != 0 || e.size != e.compressed) {
      throw InputError(where_ + ": the entry " + quote_name(name) +
                       " is compressed or encrypted, torch stores it plain");
    }
    // The local header repeats the name; its extra field (the alignment padding) precedes the content.
    if (f.range(e.offset, kLocalSize).empty() || f.u32(e.offset) != kLocal || f.u16(e.offset + 26) != name_size ||
        f.text(e.offset + kLocalSize, name_size) != name) {
      throw InputError(where_ + ": the entry " + quote_name(name) + " has no local header where the directory says");
    }
    const std::uint64_t content = e.offset + kLocalSize + name_size + f.u16(e.offset + 28);
    if (!entries_.emplace(name, Entry{f.range(content, e.size), f.u32(at + 16), false}).second) {
      throw InputError(where_ + ": the entry " + quote_name(name) + " is there twice");
    }
    places.emplace_back(e.offset, content + e.size);
    at += kCentralSize + name_size + extra_size + comment_size;
  }
  // Otherwise entries that share bytes would cause repeated checks of the same content.
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].first < places[i - 1].second) {
      throw InputError(where_ + ": two entries of the zip directory overlap; it is damaged");
    }
  }
}

std::vector<std::string> ZipReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::span<const std::byte> ZipReader::read(const std::string& name) {
  const auto it = entries_.find(name);
  if (it == entries_.end()) throw InputError(where_ + ": the entry " + quote_name(name) + " is missing");
  Entry& entry = it->second;
  if (!entry.checked && crc32(entry.content) != entry.crc) {
    throw InputError(where_ + ": the entry " + quote_name(name) + " is damaged (its checksum differs)");
  }
  entry.checked = true;
  return entry.content;
}

}  // namespace oscar
