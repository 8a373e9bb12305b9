// The start of every attend() over a cache, and the order in which a cache takes the tokens of a call. It takes one
// token of every sequence at a time, because each token attends to the cache as it is then.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/kv_method.h"
#include "model/attention.h"
#include "transform/transform.h"

namespace oscar {

// Keys or values in the form of the cache: BF16((x - mean) forward). rows: [T, Hkv, d] floating; returns [T, Hkv, d]
// BF16 on the CPU, contiguous. Bits do not depend on T or on threads (cache/row_loops.h). rope_phases: [T, d] of the
// tokens' positions, required for a rotated mean (std::logic_error without).
at::Tensor transformed_rows(const at::Tensor& rows, const SideTransform* side, const at::Tensor& rope_phases = {});

// Keys or values of a call's new tokens in the form of the cache: transformed_rows() at their positions.
at::Tensor new_rows(const KvMethod& method, const AttentionInput& input, Side side);
// Keys and values, and the BF16 channels [T, 1, R] beside the keys of latent attention, whose values are undefined.
struct NewRows {
  at::Tensor keys, values, rope;
};
NewRows new_rows(const KvMethod& method, const AttentionInput& input);

// Rows in the form that kernels read: [T, H, d] on the device, contiguous; BF16 stays BF16, other types become FP32.
at::Tensor kernel_rows(const at::Tensor& rows, at::Device device);

// Which code brings queries and new rows into the cache basis.
enum class Rotation : std::uint8_t {
  kQueriesAndRows,  // begin_step(); for a cache whose rows are coded in main memory
  kQueries,         // begin_step(); rows are coded in full, sequence by sequence (prefill_core.h)
  kInKernels,       // the kernels; begin_step() gives them kernel_rows()
};

// A call in the form that attention over the cache needs. Tensors are in the cache basis, unless the rotation is
// kInKernels.
struct BegunStep {
  at::Tensor q;             // [T, Hq, d] FP32
  at::Tensor keys, values;  // [T, Hkv, d] BF16 on the CPU, or kernel_rows(); undefined for Rotation::kQueries
  at::Tensor rope;          // NewRows::rope
  at::Tensor shift;         // [T, Hq] FP32, added to each logit; undefined if it has no effect, and for kInKernels
  // For keys with a rotated mean: the missing part of their logits as a query of the position phases, u(q) [T, Hq, d],
  // and the phases [tokens, d] of all positions so far, on the CPU; only for kQueriesAndRows. For latent attention
  // `positions` are its queries with RoPE, [T, Hq, R].
  at::Tensor positions, rope_phases;
  at::Tensor sinks;       // [Hq] FP32 sink logits of the model, or undefined
  at::Tensor output;      // output to fill: [T, Hq, d] FP32 in the basis of the values
  at::Tensor weight_sum;  // output to fill if there are sinks: [T, Hq] sums of softmax weights; not for kInKernels
};

// Checks the call, rotates what `rotation` requires, and allocates outputs; tensors are on `device` unless stated
// otherwise. held(id): number of tokens of the sequence in the cache. std::invalid_argument if a sequence does not
// start at the end of the cache, or if only some tokens' queries are requested. Also if kernels would omit a mean that
// the call's soft cap or sink logits depend on.
BegunStep begin_step(const KvMethod& method, const AttentionInput& input, at::Device device, Rotation rotation,
                     const std::function<std::int64_t(std::int64_t id)>& held);

// std::invalid_argument if a sequence of the call does not start at the end of the cache. held: as for begin_step().
void check_starts(const AttentionInput& input, const std::function<std::int64_t(std::int64_t id)>& held);

// The filled output in the model's basis and type: the result of attend().
at::Tensor model_outputs(const KvMethod& method, const AttentionInput& input, const BegunStep& step);

struct StepToken {
  std::int64_t id = 0;        // id of the sequence
  std::int64_t row = 0;       // row in the batch's tensors
  std::int64_t position = 0;  // position in the sequence
};

// Calls step(tokens) for the first token of every sequence, for the second, and so on; sequences that have ended are
// skipped.
template <class F>
void for_each_step(const SequenceBatch& batch, F&& step) {
  std::vector<StepToken> tokens;
  for (std::int64_t i = 0;; ++i) {
    tokens.clear();
    std::int64_t first = 0;
    for (std::size_t s = 0; s < batch.lengths.size(); first += batch.lengths[s++]) {
      if (i < batch.lengths[s]) tokens.push_back({batch.ids[s], first + i, batch.starts[s] + i});
    }
    if (tokens.empty()) return;
    step(tokens);
  }
}

// BF16 rows of keys or values on the CPU as bits; operator[](i) is row i of [T, Hkv, d].
struct RowBits {
  explicit RowBits(const at::Tensor& rows) {
    if (!rows.defined()) return;
    bits = reinterpret_cast<const std::uint16_t*>(rows.const_data_ptr<at::BFloat16>());
    width = rows.size(1) * rows.size(2);
  }
  const std::uint16_t* operator[](std::int64_t i) const { return bits + i * width; }

  const std::uint16_t* bits = nullptr;  // null: undefined rows
  std::int64_t width = 0;
};

// Appends all rows, BF16 on the CPU, contiguous, to a cache without attention. Several threads
// code the pages.
void append_batch(KvCache& cache, std::int64_t layer, const SequenceBatch& batch, const NewRows& rows);
// Appends the rows of one step, with several threads if there is enough to code.
void append_step(KvCache& cache, std::int64_t layer, const std::vector<StepToken>& tokens, const RowBits& keys,
                 const RowBits& values, const RowBits& rope);

}  // namespace oscar
