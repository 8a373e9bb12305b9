// Replaces LibTorch's PyTorchStreamWriter: this library stays free of Torch, uses AtomicFile and determines every byte.
// The writer's serialization id and padding depend on the version of Torch.
#include "base/errors.h"
#include "torch_file/crc32.h"
#include "torch_file/torch_pt_zip.h"

namespace oscar {
namespace {

constexpr std::uint64_t kAlignment = 64, kLocalHeadSize = 30, kExtraHead = 4, kLimit = 0xffffffffu;
constexpr std::uint16_t kUtf8Names = 0x0800;  // general purpose flag, bit 11

void put16(std::string* out, std::uint64_t value) {
  *out += static_cast<char>(value & 255);
  *out += static_cast<char>(value >> 8 & 255);
}
void put32(std::string* out, std::uint64_t value) {
  put16(out, value & 0xffff);
  put16(out, value >> 16);
}

// Fields common to the local and the central header: version needed, flags, method 0, no time, crc, sizes, name length.
void put_common(std::string* out, std::uint32_t crc, std::uint64_t size, std::size_t name_size) {
  put16(out, 20);
  put16(out, kUtf8Names);
  put16(out, 0);
  put32(out, 0);
  put32(out, crc);
  put32(out, size);
  put32(out, size);
  put16(out, name_size);
}

}  // namespace

void ZipWriter::write(std::string_view text) {
  sink_(std::as_bytes(std::span(text)));
  position_ += text.size();
}

void ZipWriter::add(const std::string& name, std::string_view content) { add(name, std::as_bytes(std::span(content))); }

void ZipWriter::add(const std::string& name, std::span<const std::byte> content) {
  if (name.size() > 1000) throw InputError("a zip entry name is longer than 1000 bytes");
  const std::uint64_t unpadded = position_ + kLocalHeadSize + name.size() + kExtraHead;
  const std::uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  if (unpadded + padding + content.size() > kLimit) throw InputError("a .pt file cannot hold more than 4 GiB");
  entries_.push_back({name, position_, content.size(), crc32(content)});
  std::string header = "PK\x03\x04";
  put_common(&header, entries_.back().crc, content.size(), name.size());
  put16(&header, kExtraHead + padding);
  header += name + "FB";  // the extra field torch uses for its padding
  put16(&header, padding);
  header.append(padding, 'Z');
  write(header);
  sink_(content);
  position_ += content.size();
}

void ZipWriter::finish() {
  const std::uint64_t start = position_;
  for (const Entry& entry : entries_) {
    std::string header("PK\x01\x02\0\0", 6);  // made by: version 0, MS-DOS attributes
    put_common(&header, entry.crc, entry.size, entry.name.size());
    header.append(12, '\0');  // no extra field, no comment, disk 0, no attributes
    put32(&header, entry.offset);
    write(header + entry.name);
  }
  if (position_ > kLimit || entries_.size() > 0xffff) throw InputError("a .pt file cannot hold that many entries");
  std::string end("PK\x05\x06\0\0\0\0", 8);
  put16(&end, entries_.size());
  put16(&end, entries_.size());
  put32(&end, position_ - start);
  put32(&end, start);
  put16(&end, 0);
  write(end);
}

}  // namespace oscar
