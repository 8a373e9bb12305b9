#include "checkpoint/safetensors.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {
namespace {

std::string file(const std::string& header, std::size_t data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + std::string(data, 'x');
}

}  // namespace

std::vector<std::string> seeds() {
  return {file("{}", 0), file(R"({"t":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}  )", 24),
          file(R"({"__metadata__":{"format":"pt","a":"b"},"t":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
               R"("u":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
               R"("v":{"dtype":"U8","shape":[0,9],"data_offsets":[26,26]}})",
               26),
          file(R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
               R"("b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
               16)};
}

void read_input(std::string_view bytes) {
  const SafetensorsFile parsed = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "fuzz.safetensors");
  std::size_t total = 0, sum = 0;
  for (const TensorView& tensor : parsed.tensors()) {
    require(parsed.find(tensor.name) == &tensor, "every tensor is found by its name");
    require(static_cast<std::size_t>(tensor.elements()) * dtype_size(tensor.dtype) == tensor.data.size(),
            "the data fit the shape");
    for (const std::byte value : tensor.data) sum += std::to_integer<std::size_t>(value);  // every byte is readable
    total += tensor.data.size();
  }
  require(total <= bytes.size() && sum <= 255 * total, "tensors do not overlap");
}

}  // namespace oscar::fuzz
