// What every attend() over a cache begins with, and the order in which a cache takes the tokens of a call: one of every
// sequence at a time, because each attends to what the cache holds then. Defined in cached_attention.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/kv_method.h"
#include "model/attention.h"
#include "rotation/transform.h"

namespace oscar {

// Keys or values as the cache holds them: BF16((x - mean) forward). rows: [T, Hkv, d] floating; returns [T, Hkv, d]
// BF16 on the CPU, contiguous. Bits do not depend on T or on threads (cache/row_loops.h).
// rope_phases: [T, d] of the tokens' positions, needed where the mean is a rotated one (std::logic_error without).
at::Tensor transformed_rows(const at::Tensor& rows, const SideTransform* side, const at::Tensor& rope_phases = {});

// Keys or values of the new tokens of a call as the cache takes them: transformed_rows() at their positions.
at::Tensor new_rows(const KvMethod& method, const AttentionInput& input, Side side);
// Both; where one vector is key and value, it is made once.
struct NewRows {
  at::Tensor keys, values;
};
NewRows new_rows(const KvMethod& method, const AttentionInput& input);

// As the kernels read rows: [T, H, d] on the device, contiguous, BF16 where they are, else FP32.
at::Tensor kernel_rows(const at::Tensor& rows, at::Device device);

// Who brings queries and new rows into the basis of the cache.
enum class Rotation : std::uint8_t {
  kQueriesAndRows,        // begin_step(), for a cache whose rows are coded in main memory
  kQueries,               // begin_step(); rows are coded whole, sequence by sequence (reconstruction.h)
  kQueriesWithPositions,  // begin_step(), queries of positions too; kernels bring its kernel_rows() into the basis
  kInKernels,             // the kernels, of which begin_step() gives kernel_rows()
};

// A call as attention over the cache takes it. In the basis of the cache, but of Rotation::kInKernels.
struct BegunStep {
  at::Tensor q;             // [T, Hq, d] FP32
  at::Tensor keys, values;  // [T, Hkv, d] BF16 on the CPU, or kernel_rows(); undefined of Rotation::kQueries
  at::Tensor shift;         // [T, Hq] FP32 of each logit; undefined where nothing sees it, and of kInKernels
  // Of keys with a rotated mean: what their logits lack as a query of the phases of positions, u(q) [T, Hq, d], and, of
  // kQueriesAndRows, [tokens, d] of all positions so far on the CPU.
  at::Tensor positions, rope_phases;
  at::Tensor sinks;       // [Hq] FP32 sink logits of the model, or undefined
  at::Tensor output;      // to be filled: [T, Hq, d] FP32 in the basis of the values
  at::Tensor weight_sum;  // to be filled where there are sinks: [T, Hq] sums of softmax weights; not of kInKernels
};

// Checks the call, rotates what `rotation` says, and makes room for outputs; tensors are on `device` where nothing else
// is said. held(id): tokens of the sequence that the cache holds. std::invalid_argument when a sequence does not start
// where the cache ends, when queries of some tokens alone are asked for, or when kernels would leave out a mean that
// the call's soft cap or sink logits see. on_device: the method with its transforms on `device`, where they would be
// copied for every call otherwise; null: they are not.
BegunStep begin_step(const KvMethod& method, const AttentionInput& input, at::Device device, Rotation rotation,
                     const std::function<std::int64_t(std::int64_t id)>& held, const KvMethod* on_device = nullptr);

// The filled output in the model's basis and type: what attend() returns.
at::Tensor model_outputs(const KvMethod& method, const AttentionInput& input, const BegunStep& step);

struct StepToken {
  std::int64_t id = 0;        // of the sequence
  std::int64_t row = 0;       // of the batch's tensors
  std::int64_t position = 0;  // in the sequence
};

// Calls step(tokens) for the first token of every sequence, for the second, ...: of those that have one.
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

// BF16 rows of keys or values on the CPU as bits: row i of [T, Hkv, d].
struct RowBits {
  explicit RowBits(const at::Tensor& rows)
      : bits(reinterpret_cast<const std::uint16_t*>(rows.const_data_ptr<at::BFloat16>())),
        width(rows.size(1) * rows.size(2)) {}
  const std::uint16_t* operator[](std::int64_t i) const { return bits + i * width; }

  const std::uint16_t* bits;
  std::int64_t width;
};

// All rows of k and v, [T, Hkv, d] BF16 on the CPU, contiguous, into a cache without attention; pages are coded by
// several threads.
void append_batch(KvCache& cache, std::int64_t layer, const SequenceBatch& batch, const NewRows& rows);
// The rows of one step, by several threads where there is enough to code.
void append_step(KvCache& cache, std::int64_t layer, const std::vector<StepToken>& tokens, const RowBits& keys,
                 const RowBits& values);

}  // namespace oscar
