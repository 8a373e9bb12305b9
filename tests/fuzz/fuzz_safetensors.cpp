#include "base/errors.h"
#include "checkpoint/safetensors.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {
namespace {

std::string file(std::string header, std::size_t data) {
  while (header.size() % 8 != 0) header += ' ';
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + std::string(data, 'x');
}

}  // namespace

std::vector<std::string> seeds() {
  return {file(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
               R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
               32),
          file("{}", 0), file(R"({"empty":{"dtype":"I64","shape":[0,7],"data_offsets":[0,0]}})", 0),
          file(R"({"scalar":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1)};
}

void read_input(std::string_view bytes) {
  const SafetensorsFile parsed = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "fuzz.safetensors");
  // Touch every byte that a view promises; the sum is used so that the reads are not optimised away.
  unsigned sum = 0;
  for (const TensorView& tensor : parsed.tensors()) {
    for (const std::byte value : tensor.data) sum += std::to_integer<unsigned>(value);
    sum += static_cast<unsigned>(tensor.elements()) + static_cast<unsigned>(tensor.shape_text().size());
  }
  if (sum == 0xffffffffU) throw InputError("no small file sums to this");
}

}  // namespace oscar::fuzz
