// The parameters of one launch as the kernels see them: the caller's parameters, and values that the host derives from
// the layout.
#pragma once

#include <cstdint>

#include "kernels/decode/decode_attention.h"

namespace oscar::kernels {

// Keys or values of a `blocks` page. The kernels process the blocks by falling width, whatever their order in the page:
// rank 0 is the widest.
struct BandSide {
  std::int32_t band[4];   // block index, by rank
  std::int32_t width[4];  // by rank: 4, 2, 1, 0
  std::int32_t codes[4];  // by rank: byte of its codes in the page
  std::int32_t scales;    // byte of the first plane's 64 scale bytes
  std::int32_t ranks[4];  // rank of each plane in the page; missing planes stand for the blocks without codes

  OSCAR_HD std::uint32_t widths() const {  // one byte per rank
    return static_cast<std::uint32_t>(width[0] | width[1] << 8 | width[2] << 16 | width[3] << 24);
  }
};

struct DecodeLaunch {
  PagedDecodeParams p;
  BandSide key, value;               // layout `blocks`
  std::int32_t page_bytes;           // bytes of a ring slot: a page, or the keys or the values of one BF16 tile
  std::int32_t slot_bytes;           // byte of a slot at which its page queries start, if it has such
  std::int32_t row_offset;           // the page queries of its content at this byte
  const std::uint8_t* page_queries;  // page_queries.h; only with has_positions()
  std::int32_t slots;                // ring slots per warp
  std::int32_t gqa_group;            // query heads per KV head
  std::int32_t parts;                // cluster kernel: number of clusters that share an item
  void* exchange;                    // parts kernel: part_exchange.cuh
  std::int32_t pool_bytes;           // bytes of the rings and of the merge area over them; other shared memory follows
};

}  // namespace oscar::kernels
