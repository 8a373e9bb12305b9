// Gives the windows of running requests their BF16 entries, where engines share blocks among requests (prefix caching):
// an entry holds one block's tokens before quantization, and belongs to the block. CPU reference and specification:
// assign_entries() of python/oscar_kv/ops/entry_reference.py.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// R requests whose windows have W = sink_pages + ring_pages blocks. All pointers are device pointers. Arrays of one
// element more than there are entries or blocks have a last one for what is discarded.
struct AssignEntriesParams {
  const std::int32_t* lengths;  // [R] tokens with the new ones; 0: padding
  const std::int64_t* known;    // [R] tokens before the new ones of a chunk; -1: not a chunk
  const std::int64_t* few;      // [R] new tokens
  const std::int64_t* slots;    // [R] of the request, below `slot_count`, which stands for padding
  const std::int32_t* table;    // [R, columns] blocks of the requests
  std::int64_t* wanted;         // [slot_count + 1, W] blocks of each slot's windows, -1: none
  std::int64_t* entry_of;       // [blocks + 1] entry of each block, -1: none
  std::int64_t* block_of;       // [entries + 1] block of each entry, -1: none
  std::int64_t* used_at;        // [entries + 1] pass that used an entry last, and 2^38 more if it holds a sink
  std::int64_t* marked;         // [entries + 1] pass in which an entry was in somebody's window
  std::int64_t* blocks;         // [R, W] written: blocks of the windows, -1: none
  std::int32_t* found;          // [R, W] written: their entries; `entries` where there is none
  std::int32_t* ring;           // [R, ring_pages] written: the last columns of found
  std::uint8_t* read;           // [R, W] written: 1 if the entry is new and its block has tokens already
  std::int64_t* lost;           // [1] counts blocks for which there was no entry, and `read` if it must be empty
  std::int64_t now;             // number of this call, above all earlier ones
  std::int32_t requests, columns, slot_count, sink_pages, ring_pages, recent;  // recent: 0: tokens are not taken back
  std::int32_t block_count, entry_count;
  bool after;   // windows as they are after the new tokens of chunks; otherwise before them
  bool counts;  // `read` into `lost`, because no request of the pass can be new
};

// One thread block. Allocates nothing and does not synchronize.
cudaError_t assign_entries(const AssignEntriesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
