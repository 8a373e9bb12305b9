// The page layout described by the integers of RowCode.numbers(): [blocks, head_dim, group, bfloat16 parameters, widths
// of the four groups]; blocks: 2 for refined codes, which latent attention has.
#pragma once

#include <array>

#include "kernels/common/page_layout.h"
#include "kernels/quantize/quantize_pages.h"
#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

struct Code {
  bool blocks = false, bfloat16_params = false;
  std::int32_t head_dim = 0, group = 0;
  std::array<std::uint8_t, 4> widths{};
  bool refined = false;

  oscar::SideLayout side(std::int32_t offset) const {
    return blocks ? oscar::band_side(head_dim, widths.data(), offset)
                  : oscar::uniform_side(head_dim, group, bfloat16_params, offset);
  }
};

inline oscar::kernels::QuantizeEncoder encoder_of(bool search) {
  return search ? oscar::kernels::QuantizeEncoder::kSearch : oscar::kernels::QuantizeEncoder::kMinMax;
}

inline Code code_of(const Arguments& arguments, const std::vector<std::int64_t>& numbers, const char* name,
                    bool latent = false) {
  if (numbers.size() != 8) {
    arguments.refuse(std::string("the code of ") + name + " has " + std::to_string(numbers.size()) +
                     " numbers, expected the 8 of RowCode.numbers()");
  }
  Code code{numbers[0] != 0,
            numbers[3] != 0,
            arguments.int32(numbers[1], "head_dim"),
            arguments.int32(numbers[2], "group"),
            {},
            latent && numbers[0] == 2};
  if (numbers[0] < 0 || numbers[0] > (latent ? 2 : 1)) {
    arguments.refuse(std::string("the code of ") + name + " is of layout " + std::to_string(numbers[0]) +
                     ", expected uniform (0) or blocks (1)");
  }
  for (std::size_t b = 0; b < 4; ++b) {
    const std::int64_t width = numbers[4 + b];
    if (width != 0 && width != 1 && width != 2 && width != 4) {
      arguments.refuse(std::string("the code of ") + name + " has a block of " + std::to_string(width) +
                       " bits, expected 0, 1, 2 or 4");
    }
    code.widths[b] = static_cast<std::uint8_t>(width);
  }
  const bool valid = code.blocks ? code.head_dim % 4 == 0 : code.group > 0 && code.head_dim % code.group == 0;
  if (code.head_dim < 1 || !valid) {
    arguments.refuse(std::string("the code of ") + name + " has groups that do not divide head_dim " +
                     std::to_string(code.head_dim));
  }
  return code;
}

// The pages of a layer: keys, then values.
struct PageCode {
  Code key, value;
  oscar::PageLayout page;

  PageCode(const Arguments& arguments, const std::vector<std::int64_t>& key_numbers,
           const std::vector<std::int64_t>& value_numbers)
      : key(code_of(arguments, key_numbers, "keys")), value(code_of(arguments, value_numbers, "values")) {
    if (key.head_dim != value.head_dim) {
      arguments.refuse("keys have head_dim " + std::to_string(key.head_dim) + ", values " +
                       std::to_string(value.head_dim) + "; expected one head size");
    }
    page.key = key.side(0);
    page.value = value.side(page.key.end());
  }
  std::int32_t head_dim() const { return key.head_dim; }
};

// What the codes of a layer are read with. sigma [Hkv, 4].
struct Codes {
  const Tensor &key_sigma, &value_sigma;
  const std::vector<std::int64_t>&key_code, &value_code;

  PageCode page(const Arguments& arguments) const { return {arguments, key_code, value_code}; }
  template <class Params>
  void put(const Arguments& arguments, Params& key, Params& value, std::int64_t kv_heads) const {
    key.sigma = arguments.get<float>(key_sigma, "key_sigma", ScalarType::Float, {kv_heads, 4});
    value.sigma = arguments.get<float>(value_sigma, "value_sigma", ScalarType::Float, {kv_heads, 4});
  }
};

// What they are written with. clip [Hkv], bad [2].
struct Writing {
  Codes codes;
  const Tensor &key_clip, &value_clip, &bad;
  bool search;
};

// Parameters of kernels that write the codes of a layer into a pool.
struct WrittenPages {
  PageCode code;
  std::int64_t kv_heads;
  oscar::kernels::QuantizePagesParams key{}, value{};

  WrittenPages(const Arguments& arguments, const Tensor& pool, const Writing& writing)
      : code(writing.codes.page(arguments)), kv_heads(pool.dim() == 3 ? pool.size(1) : kAny) {
    key.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kv_heads, code.page.bytes()});
    key.page_bytes = code.page.bytes(), key.kv_heads = arguments.int32(kv_heads, "KV heads"), key.matrix_heads = 1;
    key.encoder = encoder_of(writing.search);
    value = key;
    key.layout = code.page.key, value.layout = code.page.value, value.value_side = true;
    writing.codes.put(arguments, key, value, kv_heads);
    key.clip = arguments.get<float>(writing.key_clip, "key_clip", ScalarType::Float, {kv_heads});
    value.clip = arguments.get<float>(writing.value_clip, "value_clip", ScalarType::Float, {kv_heads});
    key.bad = arguments.get<std::int32_t>(writing.bad, "bad", ScalarType::Int, {2}), value.bad = key.bad + 1;
  }
};

}  // namespace oscar_kv
