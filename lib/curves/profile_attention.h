// Attention of one sequence in which one side of one layer, or the one vector of latent attention, is quantized with
// several width profiles at once: what measured curves (curve_passes.h) run in the quantized layer.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bundle/bundle.h"
#include "cache/kv_method.h"
#include "model/attention.h"
#include "rotation/profile_allocation.h"

namespace oscar {

// The exact cache: keys and values rounded to BF16, nothing quantized. Answers the queries of some tokens alone. On the
// CPU by attention/fused_prefill.h where that runs, by FullAttention elsewhere.
class ExactCacheAttention : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override;

 private:
  FullAttention full_;
};

// A cache whose every block has the same width, for each width: profiles are put together from their rows, since
// blocks are coded on their own.
using WidthMethods = std::array<KvMethod, 3>;  // 1, 2 and 4 bits
WidthMethods make_width_methods(const Bundle& bundle, const ModelConfig& model, const CacheWindows& windows);

// The batch must be P copies of one sequence from position 0 on, P = profiles (+ 1 with `exact`); copy p leaves with
// the outputs that profile p gives, the last one with `exact` with those of rows that are transformed but not coded.
// Queries, transforms and codes of each width are made once; value profiles share the softmax, too, because outputs are
// linear in the values. Answers the queries of some tokens alone, the same ones of each copy.
class ProfileAttention : public Attention {
 public:
  ProfileAttention(const WidthMethods& methods, Side side, const std::vector<Widths>& profiles, bool exact);
  at::Tensor attend(const AttentionInput& input) override;

 private:
  at::Tensor attend_keys(const AttentionInput& input) const;
  at::Tensor attend_values(const AttentionInput& input) const;
  at::Tensor attend_vector(const AttentionInput& input) const;  // keys and values are one
  std::int64_t copies() const { return static_cast<std::int64_t>(profiles_.size()) + (exact_ ? 1 : 0); }

  const WidthMethods& methods_;
  Side side_;
  const std::vector<Widths>& profiles_;
  bool exact_;
};

}  // namespace oscar
