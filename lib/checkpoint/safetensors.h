// safetensors container (huggingface/safetensors format): u64 little-endian header length, JSON header, tensor data.
// The reader maps the file and treats it as hostile; every rule of the format is checked before a view is handed out.
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

// kOther: a type that nothing here reads (F4, F6_E2M3, C64), whose name TensorView::other_type keeps.
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

std::size_t dtype_size(DType dtype);  // bytes of one element; of kOther 1
const char* dtype_name(DType dtype);  // the name in the header: "BF16"

// A tensor inside a mapped file or inside the caller's memory. Row-major; data may be unaligned.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // bytes == product(shape) * dtype_size(dtype), but of kOther
  std::string other_type = {};      // of kOther, as the header names it

  std::string type_text() const;  // "BF16"
  std::int64_t elements() const;
  std::string shape_text() const;  // "[2, 128, 128]"
};

class SafetensorsFile {
 public:
  // Throws InputError naming the file and the first rule it breaks.
  static SafetensorsFile open(const fs::path& path);
  // The same over bytes in memory, which must outlive the result; `where` names them in messages.
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

// Writes atomically; tensors in descending element size, then by name; header padded to 8 bytes. Equal content gives
// byte-identical files, whatever the order of `tensors`. InputError for a name used twice, a name that is not UTF-8, or
// data whose size does not fit the shape. durable: as AtomicFile::commit().
void write_safetensors(const fs::path& path, std::vector<TensorView> tensors,
                       const std::map<std::string, std::string>& metadata, bool durable = true);

}  // namespace oscar
