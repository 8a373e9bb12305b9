// The cache side of one decode step, in one launch. It changes the basis, and writes the new rows of keys and values
// into the BF16 windows. CPU references: rotate_rows() of lib/cache/row_loops.h, bit for bit on equal rows, and
// KvCache::append(). Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::kernels {

// A row of q, k and v and its destination.
struct AppendJob {
  std::int32_t row;       // row of q, k and v
  std::int32_t sequence;  // row of window_table
  std::int32_t position;  // position of the token in its sequence
};

// N tokens, Hq query heads, Hkv KV heads, D head_dim. All pointers are device pointers.
struct AppendTokensParams {
  const void* q = nullptr;  // [.., Hq, D] FP32, or BF16 if rows_bfloat16; null: only keys and values
  const void* k = nullptr;  // [.., Hkv, D]; null: only queries
  const void* v = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from one token to the next
  const AppendJob* jobs = nullptr;        // [N]; null: row i belongs to sequence i, position lengths[i] - 1
  const std::int32_t* lengths = nullptr;  // [N] tokens including the new one; 0: the row is skipped
  const float* query_matrix = nullptr;    // [matrix_heads, D, D] row times matrix, or null: identity
  const float* key_matrix = nullptr;      // [matrix_heads, D, D]
  const float* value_matrix = nullptr;    // [value_matrix_heads, D, D]
  const float* key_mean = nullptr;        // [Hkv, D] subtracted before the matrix, or null
  const float* value_mean = nullptr;      // [Hkv, D]
  // [positions, D] cosines, then sines, of each position: the key mean is a mean before RoPE, and is subtracted with
  // RoPE applied for the row's position. null: the mean is the same everywhere.
  const float* rope_phases = nullptr;
  float* position_query = nullptr;             // [N, Hq, D] u(q) of lib/model/rope_phases.h, with rope_phases, or null
  std::uint16_t* query = nullptr;              // [N, Hq, D] BF16, in the cache basis, in the order of the jobs
  std::uint8_t* window_pages = nullptr;        // [window pages, Hkv, window_page_bytes(D)] of this layer
  const std::int32_t* window_table = nullptr;  // [sequences, sink_pages + ring_pages]
  std::int32_t tokens = 0;                     // N
  std::int32_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t matrix_heads = 1, value_matrix_heads = 1;  // 1 or Hkv
  std::int32_t sink = 0, sink_pages = 0, ring_pages = 0;  // as in decode/decode_attention.h
  bool rows_bfloat16 = true;
};

// cudaErrorInvalidValue for a head_dim other than 64, 128, 256 and 512. Allocates nothing, does not synchronize, may be
// captured into a graph. Equal inputs give equal bits.
cudaError_t append_tokens(const AppendTokensParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
