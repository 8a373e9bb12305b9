// The safetensors container (huggingface/safetensors format): u64 little-endian header length, JSON header, tensor
// data. The reader maps the file and does not trust it. It checks every rule of the format before it returns a view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace oscar {

// kOther: a type that this project does not read (F4, F6_E2M3, C64); TensorView::other_type has its name.
enum class DType {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kOther
};

std::size_t dtype_size(DType dtype);  // bytes of one element; 1 for kOther
const char* dtype_name(DType dtype);  // the name in the header: "BF16"

// A tensor inside a mapped file or inside the caller's memory. Row-major; data may be unaligned.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // bytes == product(shape) * dtype_size(dtype), except for kOther
  std::string other_type = {};      // for kOther, the name in the header

  std::string type_text() const;  // "BF16"
  std::int64_t elements() const;
  std::string shape_text() const;  // "[2, 128, 128]"
};

class SafetensorsFile {
 public:
  // InputError that names the file and the first broken rule.
  static SafetensorsFile open(const fs::path& path, Links links = Links::kFollow);
  // The same for bytes in memory, which must outlive the result; `where` names them in messages.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& where);

  const fs::path& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // sorted by name
  const TensorView* find(std::string_view name) const;                 // nullptr when absent
  const TensorView& at(std::string_view name) const;                   // InputError when absent

 private:
  fs::path path_;
  std::shared_ptr<MappedFile> file_;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorView> tensors_;
};

// Writes atomically. Tensors are sorted by descending element size, then by name; the header is padded to 8 bytes.
// Equal content gives byte-identical files for any order of `tensors`. InputError for a duplicate name, a name that is
// not UTF-8, or data that does not fit the shape. durable: as in AtomicFile::commit().
void write_safetensors(const fs::path& path, std::vector<TensorView> tensors,
                       const std::map<std::string, std::string>& metadata, bool durable = true);

}  // namespace oscar
