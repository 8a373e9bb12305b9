#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "checkpoint/safetensors_header.h"

namespace oscar {
namespace {

constexpr std::uint64_t kPrefix = 8;               // the length field
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the reference reader
static_assert(std::endian::native == std::endian::little, "tensor data and lengths are used in place");

std::string tensor_place(const HeaderTensor& t) {
  return "tensor " + quote_name(t.name) + " at bytes " + std::to_string(t.begin) + " to " + std::to_string(t.end);
}

// Bytes required by shape and type; types of less than a byte end with a complete byte.
std::optional<std::uint64_t> bytes_of(const HeaderTensor& t) {
  if (t.dtype != DType::kOther) return tensor_bytes(t.shape, t.dtype);
  const std::optional<std::uint64_t> elements = tensor_bytes(t.shape, DType::kOther);
  const std::uint64_t bits = other_type_bits(t.other_type);
  if (!elements || *elements > (std::uint64_t{1} << 56)) return std::nullopt;
  return *elements * bits % 8 == 0 ? std::optional(*elements * bits / 8) : std::nullopt;
}

// Ranges must tile the data exactly. Sorted by start, each begins where the previous one ended, and the last ends the
// file.
void check_ranges(std::vector<HeaderTensor>& tensors, std::uint64_t data_bytes, const std::string& where) {
  std::sort(tensors.begin(), tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const HeaderTensor& t : tensors) {
    if (t.begin > t.end || t.end > data_bytes) {
      throw InputError(where + ": " + tensor_place(t) + " does not lie within the " + std::to_string(data_bytes) +
                       " data bytes; the file is damaged or was not copied whole");
    }
    const std::optional<std::uint64_t> bytes = bytes_of(t);
    if (!bytes) throw InputError(where + ": tensor " + quote_name(t.name) + " has a shape whose size overflows");
    if (*bytes != t.end - t.begin) {
      throw InputError(where + ": " + tensor_place(t) + " has " + std::to_string(t.end - t.begin) +
                       " bytes, but its shape and dtype need " + std::to_string(*bytes));
    }
    if (t.begin < covered) throw InputError(where + ": " + tensor_place(t) + " overlaps the tensor before it");
    if (t.begin > covered) {
      throw InputError(where + ": " + std::to_string(t.begin - covered) + " bytes before " + tensor_place(t) +
                       " belong to no tensor");
    }
    covered = t.end;
  }
  if (covered != data_bytes) {
    throw InputError(where + ": the last " + std::to_string(data_bytes - covered) + " bytes belong to no tensor");
  }
}

}  // namespace

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.size() < kPrefix) {
    throw InputError(where + ": is no safetensors file, it has " + std::to_string(bytes.size()) + " bytes");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeader) {
    throw InputError(where + ": is no safetensors file, its header length is " + std::to_string(length) + " (at most " +
                     std::to_string(kMaxHeader) + " is allowed)");
  }
  if (length > bytes.size() - kPrefix) {
    throw InputError(where + ": is truncated, the header needs " + std::to_string(length) + " bytes and " +
                     std::to_string(bytes.size() - kPrefix) + " are there");
  }
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + kPrefix, length);
  if (json.empty() || json.front() != '{') {
    throw InputError(where + ": is no safetensors file, its header does not begin with '{'");
  }
  SafetensorsHeader header = parse_safetensors_header(json, where);
  const std::span<const std::byte> data = bytes.subspan(kPrefix + length);
  check_ranges(header.tensors, data.size(), where);

  SafetensorsFile file;
  file.path_ = where;
  file.metadata_ = std::move(header.metadata);
  file.tensors_.reserve(header.tensors.size());
  for (HeaderTensor& t : header.tensors) {
    file.tensors_.push_back({.name = std::move(t.name),
                             .dtype = t.dtype,
                             .shape = std::move(t.shape),
                             .data = data.subspan(t.begin, t.end - t.begin),
                             .other_type = std::move(t.other_type)});
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return file;
}

SafetensorsFile SafetensorsFile::open(const fs::path& path, Links links) {
  auto map = std::make_shared<MappedFile>(path, links);
  SafetensorsFile file = parse(map->bytes(), path.string());
  file.path_ = path;
  file.file_ = std::move(map);
  return file;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TensorView& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) throw InputError(path_.string() + ": the tensor " + quote_name(name) + " is missing");
  return *tensor;
}

}  // namespace oscar
