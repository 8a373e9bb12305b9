// One block per (run, KV head, side). Rows minus their mean become two BF16 terms in shared memory, and tensor cores
// bring them into the cache basis. Then a warp encodes one token at a time, and each thread assembles words of the
// page.
#include "kernels/chunks/new_rows.h"
#include "kernels/chunks/tile_product.cuh"
#include "kernels/common/launch_kernel.cuh"
#include "kernels/quantize/encode_row.cuh"
#include "kernels/quantize/plane_codes.cuh"

namespace oscar::kernels {
namespace {

template <int D>
struct Shared {
  using Product = TileProduct<D>;
  union {
    __nv_bfloat16 terms[2][Product::kTokens * Product::kRow];
    float sum[Product::kTokens * Product::kSumRow];
  };
  std::uint8_t codes[kPageTokens][D];
};

// Returns whether the low terms are all zero and were not written.
template <int D, int kThreads>
__device__ bool load_rows(const NewRowsParams& p, const NewRun& run, int head, Shared<D>& s) {
  const bool exact = p.side.rows_bfloat16 && p.side.mean == nullptr;
  if (exact && p.vectors) {
    constexpr int kVectors = D / 8;
    for (int e = threadIdx.x; e < run.count * kVectors; e += kThreads) {
      const int r = e / kVectors, i = e % kVectors * 8;
      const std::int64_t index = (static_cast<std::int64_t>(run.first_row) + r) * p.row_stride + head * D + i;
      *reinterpret_cast<uint4*>(s.terms[0] + r * Shared<D>::Product::kRow + i) =
          *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.side.rows) + index);
    }
    return true;
  }
  for (int e = threadIdx.x; e < run.count * D; e += kThreads) {
    const int r = e / D, i = e % D, at = r * Shared<D>::Product::kRow + i;
    const std::int64_t index = (static_cast<std::int64_t>(run.first_row) + r) * p.row_stride + head * D + i;
    if (exact) {
      s.terms[0][at] = static_cast<const __nv_bfloat16*>(p.side.rows)[index];
      continue;
    }
    float x = p.side.rows_bfloat16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.side.rows)[index])
                                   : static_cast<const float*>(p.side.rows)[index];
    if (p.side.mean != nullptr) x = x - mean_at(p.side, head, static_cast<std::int64_t>(run.first_position) + r, i);
    const __nv_bfloat16 high = __float2bfloat16_rn(x);
    s.terms[0][at] = high;
    s.terms[1][at] = __float2bfloat16_rn(x - __bfloat162float(high));
  }
  return exact;
}

// Rounds the rows, and writes them to their window page if there is one.
template <int D, int kThreads>
__device__ void round_rows(const NewRowsParams& p, const NewRun& run, int head, Shared<D>& s) {
  std::uint8_t* page =
      p.windows + (static_cast<std::int64_t>(run.window_page) * p.side.kv_heads + head) * window_page_bytes(D);
  for (int e = threadIdx.x; e < run.count * D; e += kThreads) {
    const int r = e / D, i = e % D;
    float& x = s.sum[r * Shared<D>::Product::kSumRow + i];
    const __nv_bfloat16 rounded = __float2bfloat16_rn(x);
    x = __bfloat162float(rounded);
    if (run.window_page < 0) continue;
    const int slot = (run.first_position + r) % kPageTokens;
    *reinterpret_cast<__nv_bfloat16*>(page + window_offset(D, p.side.value_side, slot, i)) = rounded;
  }
}

// The rows of a run that a product takes: into the windows, and as codes into shared memory. Returns the page, or null.
template <int D, int kThreads>
__device__ __forceinline__ std::uint8_t* write_rows(const NewRowsParams& p, const NewRun& run, int head, Shared<D>& s) {
  using Product = TileProduct<D, kThreads>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool exact = load_rows<D, kThreads>(p, run, head, s);
  __syncthreads();
  const std::int64_t of = static_cast<std::int64_t>(p.matrix_heads == 1 ? 0 : head) * 2 * D * D;
  Product::multiply(s.terms[0], exact ? nullptr : s.terms[1], reinterpret_cast<const __nv_bfloat16*>(p.matrix) + of, 0,
                    run.count, s.sum);
  round_rows<D, kThreads>(p, run, head, s);
  if (run.page < 0) return nullptr;
  __syncthreads();
  std::uint8_t* page =
      p.side.pages + (static_cast<std::int64_t>(run.page) * p.side.kv_heads + head) * p.side.page_bytes;
  for (int r = warp; r < run.count; r += Product::kWarps) {
    const int slot = run.first_slot + r;
    encode<D / 32>(p.side, head, run.first_position + r, slot, s.sum + r * Product::kSumRow, s.codes[slot], page);
  }
  return page;
}

template <int D, int kThreads>
__device__ __forceinline__ void write_run(const NewRowsParams& p, Shared<D>& s) {
  constexpr int kTokens = Shared<D>::Product::kTokens;
  const NewRun run = p.runs[blockIdx.x];
  const int head = blockIdx.y;
  if (run.count <= 0) return;
  std::uint8_t* page = nullptr;
  if constexpr (kTokens == kPageTokens) {
    page = write_rows<D, kThreads>(p, run, head, s);
  } else {
#pragma unroll 1
    for (int first = 0; first < run.count; first += kTokens) {
      NewRun part = run;
      part.first_row += first, part.first_slot += first, part.first_position += first;
      part.count = min(kTokens, run.count - first);
      page = write_rows<D, kThreads>(p, part, head, s);
      __syncthreads();
    }
  }
  if (page == nullptr) return;
  __syncthreads();
  write_codes<D>(p.side.layout, p.side.value_side, run.first_slot, run.count, s.codes, page);
}

// A copy of the code for each side, so that parameters stay in constant memory.
template <int D, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads > 256 ? 1
                                            : D == 256     ? 2
                                                           : 3)
    new_rows_kernel(const __grid_constant__ NewRowsParams key, const __grid_constant__ NewRowsParams value) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  Shared<D>& s = *reinterpret_cast<Shared<D>*>(memory);
  if (blockIdx.z == 0) {
    write_run<D, kThreads>(key, s);
  } else {
    write_run<D, kThreads>(value, s);
  }
}

template <int D, int kThreads>
cudaError_t launch(const NewRowsParams& key, const NewRowsParams& value, cudaStream_t stream) {
  return launch_with<new_rows_kernel<D, kThreads>, Shared<D>>(grid_of(key.run_count, key.side.kv_heads, 2), kThreads,
                                                              stream, key, value);
}

// A block lasts as long as its warps take for their tokens, one after the other. So few blocks, two on each
// multiprocessor of an H200, have more warps.
constexpr int kFewBlocks = 264;

}  // namespace

cudaError_t new_rows(const NewRowsParams& key, const NewRowsParams& value, cudaStream_t stream) {
  for (const NewRowsParams* p : {&key, &value}) {
    if (p->side.kv_heads < 1 || p->side.page_bytes % 4 != 0 ||
        (p->side.layout.params == ParamKind::kScaleByte && p->side.sigma == nullptr) ||
        (p->side.rope_phases != nullptr && p->side.mean == nullptr) || p->run_count != key.run_count ||
        p->side.kv_heads != key.side.kv_heads || p->side.layout.head_dim != key.side.layout.head_dim) {
      return cudaErrorInvalidValue;
    }
  }
  if (key.run_count == 0) return cudaSuccess;
  return for_fast_head_dim(key.side.layout.head_dim, [&]<int D>() {
    constexpr int kFew = D == 64 || D == 512 ? 512 : 1024, kMany = D == 512 ? 512 : 256;
    return 2 * key.run_count * key.side.kv_heads <= kFewBlocks ? launch<D, kFew>(key, value, stream)
                                                               : launch<D, kMany>(key, value, stream);
  });
}

}  // namespace oscar::kernels
