// The parts of a decode step around the cache that a serving engine fuses: matrix-vector products for one sequence with
// the norm before and the residual or gate behind them, and for a batch what stands between the products of cuBLAS.
// BF16 rows, FP32 sums. For the decode-step benchmark.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::bench {

using Bf16 = __nv_bfloat16;

enum class GemvEnd { kPlain, kResidual, kGate, kArgmax };

// y = f(W norm(x)), one row of the batch. W [rows, columns]; kGate: W [2 rows, columns], gate rows first.
struct GemvParams {
  const Bf16* w = nullptr;
  const Bf16* x = nullptr;             // [columns]
  const Bf16* norm = nullptr;          // [columns] weight of an RMS norm of x, or null
  const Bf16* residual = nullptr;      // kResidual: [rows], added
  Bf16* y = nullptr;                   // [rows]
  unsigned long long* best = nullptr;  // kArgmax: largest (value, -row), packed; y is not written
  int rows = 0, columns = 0;           // columns: a multiple of 256 from 2048 to 16384
  float eps = 0.0f;
};
cudaError_t gemv(const GemvParams& p, GemvEnd end, cudaStream_t stream);

// normed = rms_norm(hidden) weight. [batch, columns]; columns: a multiple of 8, at most 4096
cudaError_t rms_norm(const Bf16* hidden, const Bf16* weight, Bf16* normed, int batch, int columns, float eps,
                     cudaStream_t stream);
// out = silu(gate) up; gate_up [batch, 2 columns]; columns: a multiple of 8
cudaError_t silu_gate(const Bf16* gate_up, Bf16* out, int batch, int columns, cudaStream_t stream);
// best [batch] of logits [batch, columns]; best starts at 0. columns: a multiple of 8
cudaError_t argmax(const Bf16* logits, unsigned long long* best, int batch, int columns, cudaStream_t stream);
// hidden[b] = table[token of best[b]]; tokens[b] = that token; best[b] = 0.
cudaError_t embed(const Bf16* table, unsigned long long* best, std::int32_t* tokens, Bf16* hidden, int batch,
                  int columns, cudaStream_t stream);
unsigned long long packed_token(std::int32_t token);  // a `best` that embed() reads as this token

// The BF16 cache's counterpart of append_tokens: norm and RoPE of q and k, and the new rows into a contiguous cache.
struct Bf16AppendParams {
  const Bf16* qkv = nullptr;  // [batch, Hq + 2 Hkv, D]
  const Bf16 *q_norm = nullptr, *k_norm = nullptr;
  const float *rope_cos = nullptr, *rope_sin = nullptr;  // [positions, D / 2]
  const std::int32_t* lengths = nullptr;                 // [batch], the new token included
  Bf16* query = nullptr;                                 // [batch, Hq, D]
  Bf16 *keys = nullptr, *values = nullptr;               // [batch, Hkv, capacity, D]
  int batch = 0, query_heads = 0, kv_heads = 0, capacity = 0;
  float eps = 0.0f;
};
cudaError_t append_bf16(const Bf16AppendParams& p, cudaStream_t stream);  // D = 128
// What append_tokens does not: norm and RoPE of q and k, in place in qkv. Reads no caches of p.
cudaError_t norm_and_rope(const Bf16AppendParams& p, Bf16* qkv, cudaStream_t stream);

// Codes and parameters of plausible rows: scale 0.3 to 1.3, zero point 1.2 to 1.8. pages: code pages of one KV head.
cudaError_t fill_pages(std::uint8_t* pages, long long count, int head_dim, cudaStream_t stream);

}  // namespace oscar::bench
