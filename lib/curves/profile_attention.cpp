#include "curves/profile_attention.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "attention/basis.h"
#include "attention/fast_prefill.h"
#include "attention/prefill_core.h"
#include "transform/fixed_sides.h"

namespace oscar {

// One side of one sequence in the cache basis: plain rows, and rows of each width.
struct WidthRows {
  at::Tensor plain;               // [Hkv, T, d] FP32
  std::vector<at::Tensor> coded;  // the same, for each of WidthMethods
  CacheWindows windows;

  // Index of a width: 0 (nothing), or 1, 2, 3 (`coded` + 1).
  static std::int64_t variant(std::uint8_t width) { return width == 4 ? 3 : width; }
  // The same for a block of a profile.
  static std::int64_t variant(const Widths& widths, std::size_t block) {
    if (widths.refined && block == 0) return 3 + variant(widths.back());
    return widths.refined && block + 1 == kBands ? 0 : variant(widths[block]);
  }
  WidthRows of_tokens(std::int64_t first, std::int64_t count) const {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, first, count).contiguous(); };
    WidthRows out{part(plain), {}, windows};
    for (const at::Tensor& each : coded) out.coded.push_back(part(each));
    return out;
  }
};

namespace {

constexpr std::array<std::uint8_t, 3> kCodedWidths = {1, 2, 4};

at::Tensor rounded(const at::Tensor& x) { return x.to(at::kBFloat16).to(x.scalar_type()); }

WidthRows width_rows(const WidthMethods& methods, std::int64_t layer, Side side, const at::Tensor& rows) {
  WidthRows out;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    CachedRows cached = decoded_rows(methods[i], layer, side, rows);
    out.coded.push_back(cached.coded);
    out.windows = cached.windows;
    if (i == 0) out.plain = cached.plain;
  }
  return out;
}

// Rows of a profile: block b from the rows of its width, zeros if it has no bits.
at::Tensor profile_rows(const WidthRows& rows, const Widths& widths) {
  at::Tensor out = at::zeros_like(rows.plain);
  const std::int64_t n = rows.plain.size(2) / kBands;
  for (std::int64_t b = 0; b < kBands; ++b) {
    const std::int64_t variant = WidthRows::variant(widths, static_cast<std::size_t>(b));
    if (variant == 0) continue;
    out.narrow(2, b * n, n).copy_(rows.coded[static_cast<std::size_t>(variant - 1)].narrow(2, b * n, n));
  }
  return out;
}

// Outputs for the versions of a side's rows: nothing, 1, 2 and 4 bits, and with `exact` the plain rows.
std::vector<at::Tensor> value_versions(const AttentionInput& input, const at::Tensor& q, const CachedRows& keys,
                                       const WidthRows& rows, bool exact, const at::Tensor& weight_sum) {
  const std::int64_t d = rows.plain.size(2);
  std::vector<at::Tensor> coded{rows.coded[0], rows.coded[1], rows.coded[2]}, outputs;
  if (exact) coded.push_back(rows.plain);
  if (fused_prefill_runs(input)) {  // plain rows are summed once, for all versions
    const at::Tensor wide =
        attend_fused_apart(input, q, input.asked, keys, {rows.plain, at::cat(coded, 2), rows.windows});
    const at::Tensor plain = wide.narrow(2, 0, d);
    outputs.push_back(plain);
    for (std::int64_t v = 1; v <= std::ssize(coded); ++v) outputs.push_back(plain + wide.narrow(2, v * d, d));
    return outputs;
  }
  coded.insert(coded.begin(), at::zeros_like(rows.plain));
  if (flash_prefill_runs(input, keys, {rows.plain, rows.coded[0], rows.windows})) {
    for (const at::Tensor& each : coded) {
      outputs.push_back(attend_flash(input, q, keys, {rows.plain, each, rows.windows}));
    }
    return outputs;
  }
  const std::vector<at::Tensor> plain(coded.size(), rows.plain);
  const at::Tensor wide =
      attend_cached(input, q, keys, {at::cat(plain, 2), at::cat(coded, 2), rows.windows}, {}, weight_sum);
  for (std::int64_t v = 0; v < std::ssize(coded); ++v) outputs.push_back(wide.narrow(2, v * d, d));
  return outputs;
}

// The requested tokens of a copy; undefined: all.
at::Tensor asked_of_one(const AttentionInput& input, std::int64_t copies, std::int64_t tokens) {
  if (!input.asked.defined()) return {};
  const at::Tensor by_copy = input.asked.view({copies, -1});
  const at::Tensor first = by_copy[0], offsets = at::arange(copies, first.options()).mul_(tokens).unsqueeze(1);
  if (!at::equal(by_copy, first + offsets)) {
    throw std::invalid_argument("ProfileAttention answers the same queries of each copy");
  }
  return first;
}

}  // namespace

CachedRows exact_rows(const at::Tensor& rows) {
  return {rows.to(at::kBFloat16).to(at::kFloat).transpose(0, 1).contiguous(), {}, {}};
}

at::Tensor ExactCacheAttention::attend(const AttentionInput& input) {
  AttentionInput exact = with_rope(input);
  exact.k = rounded(exact.k);
  exact.v = rounded(exact.v);
  if (fused_prefill_runs(input)) return attend_fused_batch(exact);
  if (!input.asked.defined()) return full_.attend(exact);
  return full_.attend(with_all_queries(exact)).index_select(0, input.asked.to(input.q.device()));
}

WidthMethods make_width_methods(const Bundle& bundle, const ModelConfig& model, const CacheWindows& windows) {
  WidthMethods methods;
  for (const bool refined : {false, true}) {
    for (const std::uint8_t width : kCodedWidths) {
      if (refined && !bundle.latent()) break;
      Bundle wide = bundle;
      const std::uint8_t first = refined ? std::uint8_t{4} : width;
      for (LayerTransform& layer : wide.layers) {
        set_block_widths(layer, {first, width, width, width, refined}, {first, width, width, width, refined});
      }
      methods.push_back(make_method(wide.method, model, &wide, windows));
    }
  }
  return methods;
}

ProfileAttention::ProfileAttention(const WidthMethods& methods, Side side, const std::vector<Widths>& profiles,
                                   bool exact)
    : methods_(methods), side_(side), profiles_(profiles), exact_(exact) {}

at::Tensor ProfileAttention::attend(const AttentionInput& input) {
  const SequenceBatch& batch = *input.batch;
  const std::int64_t sequences = std::ssize(batch.lengths) / copies(), tokens = batch.lengths[0];
  bool copies_of_each = std::ssize(batch.lengths) == sequences * copies();
  for (std::size_t s = 0; copies_of_each && s < batch.lengths.size(); ++s) {
    copies_of_each = batch.starts[s] == 0 && batch.lengths[s] == tokens;
  }
  if (!copies_of_each) throw std::invalid_argument("ProfileAttention needs a copy of a sequence for each profile");
  std::vector<at::Tensor> outputs;
  const std::int64_t queries = input.q.size(0) / sequences;
  // On a GPU, coding all sequences at once waits for it less often. A rotated mean depends on the position.
  const SideTransform* transform = methods_[0].transform(input.layer, side_);
  const bool at_once = sequences > 1 && (transform == nullptr || !transform->rotated_mean);
  const auto coded = [&](const at::Tensor& rows) { return width_rows(methods_, input.layer, side_, rows); };
  const at::Tensor AttentionInput::*side = side_ == Side::kKey ? &AttentionInput::k : &AttentionInput::v;
  WidthRows all;
  if (at_once) {
    all = coded((input.*side).unflatten(0, {sequences, copies(), tokens}).select(1, 0).flatten(0, 1));
  }
  const at::Tensor asked = asked_of_one(input, sequences * copies(), tokens);
  for (std::int64_t s = 0; s < sequences; ++s) {
    AttentionInput one = with_tokens(input, s * copies() * tokens, tokens);  // the copies are equal up to here
    for (at::Tensor* q : {&one.q, &one.q_rope}) {
      if (q->defined()) *q = q->narrow(0, s * queries, queries / copies());
    }
    one.asked = asked;
    outputs.push_back(attend_one(one, at_once ? all.of_tokens(s * tokens, tokens) : coded(one.*side)));
  }
  return sequences == 1 ? outputs.front() : at::cat(outputs);
}

at::Tensor ProfileAttention::attend_one(const AttentionInput& input, const WidthRows& rows) const {
  const bool all = input.asked.defined() && !fused_prefill_runs(input);
  const AttentionInput one = all ? with_all_queries(input) : input;
  const at::Tensor out = side_ == Side::kKey ? attend_keys(one, rows) : attend_values(one, rows);
  if (!all) return out.to(input.q.scalar_type());
  const at::Tensor asked = input.asked.to(out.device());
  const at::Tensor of_copies = at::arange(copies(), asked.options()).mul_(input.k.size(0)).unsqueeze(1);
  return out.index_select(0, (of_copies + asked).flatten()).to(input.q.scalar_type());
}

at::Tensor ProfileAttention::attend_keys(const AttentionInput& input, const WidthRows& rows) const {
  const std::int64_t kv_heads = input.k.size(1), queries = input.q.size(0);
  const SideTransform* key = methods_[0].transform(input.layer, Side::kKey);
  const bool rotated = key != nullptr && key->rotated_mean;
  const at::Tensor q = with_rope(rotate_queries(input.q, key, kv_heads), input.q_rope);
  const bool latent = input.k_rope.defined();  // values are the keys, coded like them
  const SideTransform* value = latent ? methods_[0].transform(input.layer, Side::kValue) : nullptr;
  at::Tensor shift;
  if (input.soft_cap > 0.0 || input.sinks.defined()) shift = logit_shift(input.q, key, kv_heads, input.scale);
  const CachedRows values = exact_rows(input.v);
  const at::Tensor mean =
      rotated ? mean_rows(*key, methods_[0].rope_phases->rows(0, input.k.size(0)).to(q.device())) : at::Tensor();
  at::Tensor weight_sum;  // values are not centered here, so it is not read
  if (input.sinks.defined()) weight_sum = at::empty({queries, q.size(1)}, q.options());
  at::Tensor out = at::empty({copies() * queries, q.size(1), input.v.size(2)}, q.options());
  for (std::int64_t p = 0; p < copies(); ++p) {
    const auto i = static_cast<std::size_t>(p);
    CachedRows keys{rows.plain, {}, rows.windows};
    if (i < profiles_.size()) keys.coded = profile_rows(rows, profiles_[i]);
    if (rotated) add_mean(keys, mean);
    const CachedRows own = latent ? keys : values;
    add_rope(keys, input.k_rope);
    // It rounds keys to BF16, which with their mean takes more than their own rounding.
    const bool flash = !rotated && !shift.defined() && flash_prefill_runs(input, keys, own);
    const at::Tensor coded = fused_prefill_runs(input) ? attend_fused(input, q, input.asked, keys, own)
                             : flash                   ? attend_flash(input, q, keys, own)
                                                       : attend_cached(input, q, keys, own, shift, weight_sum);
    out.narrow(0, p * queries, queries).copy_(restore_outputs(coded, value, kv_heads, {}));
  }
  return out;
}

at::Tensor ProfileAttention::attend_values(const AttentionInput& input, const WidthRows& rows) const {
  const std::int64_t kv_heads = input.v.size(1), queries = input.q.size(0), heads = input.q.size(1);
  const std::int64_t d = input.v.size(2), n = d / kBands;
  const SideTransform* value = methods_[0].transform(input.layer, Side::kValue);
  const CachedRows keys = exact_rows(input.k);
  const at::Tensor q = input.q.to(at::kFloat).contiguous();
  at::Tensor weight_sum;
  if (input.sinks.defined()) weight_sum = at::empty({queries, heads}, q.options());
  const std::vector<at::Tensor> versions = value_versions(input, q, keys, rows, exact_, weight_sum);
  at::Tensor out = at::empty({copies() * queries, heads, d}, q.options());
  at::Tensor one = at::empty({queries, heads, d}, q.options());
  for (std::int64_t p = 0; p < copies(); ++p) {
    for (std::int64_t b = 0; b < kBands; ++b) {
      const auto i = static_cast<std::size_t>(p);
      const std::int64_t variant =
          i < profiles_.size() ? WidthRows::variant(profiles_[i][static_cast<std::size_t>(b)]) : 4;
      one.narrow(2, b * n, n).copy_(versions.at(static_cast<std::size_t>(variant)).narrow(2, b * n, n));
    }
    out.narrow(0, p * queries, queries).copy_(restore_outputs(one, value, kv_heads, weight_sum));
  }
  return out;
}

}  // namespace oscar
