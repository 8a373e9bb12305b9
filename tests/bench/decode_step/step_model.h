// One decode step of a decoder with random weights on the GPU, with the INT2 three-tier cache or a BF16 cache.
// INT2: kernels/append/append_tokens.h, newest_tokens for the tokens that leave the windows (all layers in one
// launch), decode_attention; R_V absorbed in the value and output weights. BF16: the same step with a contiguous cache
// and LibTorch's attention.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/cache_windows.h"
#include "tests/bench/decode_step/step_kernels.h"
#include "tests/bench/decode_step/step_parts.h"
#include "tests/bench/decode_step/step_products.h"
#include "tests/bench/decode_step/step_weights.h"

namespace oscar::bench {

enum class CacheKind { kInt2, kBf16Flash, kBf16Cudnn };
std::string to_string(CacheKind kind);

class DecodeStep {
 public:
  // context: tokens of the longest sequence, the new one included. Every sequence of the batch has this length until
  // set_length().
  DecodeStep(const StepWeights& weights, CacheKind kind, std::int64_t batch, std::int64_t context,
             const CacheWindows& windows);
  void fill_random();                                          // plausible rows and codes everywhere
  void set_length(std::int64_t tokens);                        // of every sequence, the new token included
  void force_tokens(const std::vector<std::int32_t>& tokens);  // the input of the next step
  void run();  // one step on the current stream: tokens -> next tokens (greedy)
  void set_attention(CacheKind kind) { kind_ = kind; }
  void only(std::optional<StepPart> part) { only_ = part; }  // run() does this part of all layers, or the whole step
  std::vector<std::int32_t> tokens() const;                  // the input of the last step
  at::Tensor hidden() const { return hidden_; }  // [batch, hidden] after the last layer, before the final norm
  std::uint64_t allocated_bytes() const;

 private:
  bool does(StepPart part) const { return !only_ || *only_ == part; }
  void embed_tokens();
  void quantize();
  at::Tensor described_sides();
  void layer(std::int64_t index);
  void norm(const at::Tensor& weight);
  void product(StepPart part, const at::Tensor& x, const at::Tensor& w, const at::Tensor& out, bool add);
  void normed_row(StepPart part, const at::Tensor& w, const at::Tensor& norm, const at::Tensor& out, GemvEnd end);
  void add_row(StepPart part, const at::Tensor& x, const at::Tensor& w);
  void attend(std::int64_t index);
  Bf16AppendParams norms_and_rope(std::int64_t index);  // of a layer's queries and keys; names no cache
  void append_int2(std::int64_t index);
  void attend_int2(std::int64_t index);
  void append_rows_bf16(std::int64_t index);
  void attend_bf16(std::int64_t index);
  unsigned long long* best();

  const StepWeights& weights_;
  const ModelConfig& config_;
  CacheKind kind_;
  bool int2_;
  std::optional<StepPart> only_;
  StepProducts products_;
  std::int64_t batch_, context_, length_;
  CacheWindows windows_;
  std::int64_t sink_pages_ = 0, ring_pages_ = 0, max_pages_ = 0, page_bytes_ = 0, window_bytes_ = 0;
  at::Tensor pages_, window_pages_;  // [L, pages, Hkv, bytes]
  at::Tensor keys_, values_;         // BF16: [L, B, Hkv, T, d]
  at::Tensor page_table_, window_table_, lengths_, leaving_, sides_, clip_, bad_, workspace_;
  at::Tensor best_, tokens_, hidden_, normed_, qkv_, query_, attended_, gate_up_, gated_, logits_;
};

}  // namespace oscar::bench
