// The newest tokens of all layers in a step, whose descriptors are on the device.
#pragma once

#include "kernels/quantize/newest_tokens.h"
#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {

inline constexpr std::int64_t kSideBytes = oscar::kernels::kNewestSideBytes;

inline oscar::kernels::NewestTokensParams newest_tokens(const Arguments& arguments, const Tensor& lengths,
                                                        const Tensor& table, const Tensor& window_table,
                                                        const Tensor& sides, std::int64_t sink, bool search) {
  const Sequences sequences(arguments, lengths, window_table, sink);
  oscar::kernels::NewestTokensParams p{};
  sequences.put(p), sequences.put_pages(arguments, table, p);
  p.sides = reinterpret_cast<const oscar::kernels::NewestSide*>(
      arguments.get<std::uint8_t>(sides, "sides", ScalarType::Byte, {kAny, kSideBytes}));
  p.side_count = arguments.int32(sides.size(0), "sides"), p.encoder = encoder_of(search);
  return p;
}

}  // namespace oscar_kv
