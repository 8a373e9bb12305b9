// Rows of latent attention into the cache basis and out of it, by tensor cores: y = (x - before) M + after, rounded to
// BF16. Of a decode step, they go to the BF16 windows, with the RoPE part. CPU reference: rotate() of
// python/oscar_kv/ops/latent_reference.py. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/latent_page.h"

namespace oscar::kernels {

// N rows. All pointers are device pointers.
struct LatentRowsParams {
  const std::uint16_t* x;       // [N, 512] BF16, 16-byte aligned rows
  std::int64_t x_stride;        // elements from one row to the next, a multiple of 8
  const float* before;          // [512] or null
  const std::uint16_t* matrix;  // [2, 512, 512] BF16: high and low terms of M, in the order of latent_matrix_element()
  const float* after;           // [512] or null
  std::uint16_t* y;             // [N, 512] BF16, 4-byte aligned rows; may be x. null: rows go to the windows
  std::int64_t y_stride;        // even
  std::int32_t rows;
  // Where y is null: row i is the newest token of sequence i.
  const std::uint16_t* pe = nullptr;           // [N, 64] BF16 RoPE parts, 4-byte aligned
  std::int64_t pe_stride = 0;                  // even
  const std::int32_t* lengths = nullptr;       // [N] tokens with the new one; 0: the row is skipped
  const std::int32_t* window_table = nullptr;  // [N, sink_pages + ring_pages]
  std::uint8_t* windows = nullptr;             // [window pages, kLatentWindowBytes]
  std::int32_t sink = 0, sink_pages = 0, ring_pages = 0;
};

// Where M[k][n] is in a term: blocks of 16 x 16 in the order of the tensor cores' second operand.
constexpr std::int32_t latent_matrix_element(std::int32_t k, std::int32_t n) {
  return (k / 16 * (kLatentChannels / 16) + n / 16) * 256 + (4 * (n % 8) + k % 8 / 2) * 8 + n % 16 / 8 * 4 +
         k % 16 / 8 * 2 + k % 2;
}

// cudaErrorInvalidValue for strides that are not as above. Allocates nothing, does not synchronize, may be captured.
// Equal inputs give equal bits.
cudaError_t latent_rows(const LatentRowsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
