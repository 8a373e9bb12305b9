// Profiles of the rows of latent attention against the cache that a bundle of these widths makes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attention/scenario.h"
#include "curves/profile_attention.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

constexpr std::int64_t kLatentTokens = 70, kLatentRope = 16;

Scenario latent_rows(const Widths& widths, Basis basis) {
  Scenario s = make_scenario(128, 1, 3, basis, {4, 10, 1}, band_code(128, widths, widths.refined));
  for (LayerCode& code : s.method.codes) code.key_sigma = code.value_sigma = {{1.0f, 1.0f, 0.5f, 0.5f}};
  for (LayerTransform& t : s.method.layers) t.value = as_value_side(t.key);
  s.method.rope_dim = s.model.latent.rope_dim = kLatentRope;
  return s;
}

// `copies` of one sequence, whose values are its keys.
Call copies_of_one(const Scenario& s, std::int64_t copies) {
  Call call = make_call(s, std::vector<std::int64_t>(static_cast<std::size_t>(copies), kLatentTokens), 5);
  call.input.q_rope = normal(11, {kLatentTokens, s.model.query_heads, kLatentRope});
  call.input.k_rope = normal(12, {kLatentTokens, 1, kLatentRope});
  for (at::Tensor* x : {&call.input.q, &call.input.k, &call.input.q_rope, &call.input.k_rope}) {
    *x = x->narrow(0, 0, kLatentTokens).repeat({copies, 1, 1});
  }
  call.input.v = call.input.k;
  return call;
}

TEST(LatentProfiles, AreWhatACacheOfTheseWidthsGives) {
  for (const Basis basis : {Basis::kIdentity, Basis::kLayer, Basis::kCentered, Basis::kSkewed}) {
    const std::vector<Widths> profiles{{4, 2, 1, 0}, {4, 2, 1, 2, true}, {4, 4, 4, 4}, {4, 0, 0, 4, true}};
    WidthMethods methods;
    for (const bool refined : {false, true}) {
      for (const std::uint8_t w : {1, 2, 4}) {
        methods.push_back(latent_rows({refined ? std::uint8_t{4} : w, w, w, w, refined}, basis).method);
      }
    }
    ProfileAttention attention(methods, Side::kKey, profiles, true);
    const Scenario plain = latent_rows(profiles[0], basis);
    Call call = copies_of_one(plain, 5);
    call.input.batch = &call.batch;
    const at::Tensor found = attention.attend(call.input);
    Call single = copies_of_one(plain, 1);
    single.input.batch = &single.batch;
    for (std::size_t p = 0; p <= profiles.size(); ++p) {
      Scenario s = p < profiles.size() ? latent_rows(profiles[p], basis) : plain;
      s.method.quantized = p < profiles.size();  // the last copy is only transformed
      SimulatedPrefillAttention prefill(s.method);
      const at::Tensor expected = prefill.attend(single.input);
      const at::Tensor copy = found.narrow(0, static_cast<std::int64_t>(p) * kLatentTokens, kLatentTokens);
      EXPECT_LT(((copy - expected).norm() / expected.norm()).item<double>(), 2e-5) << "profile " << p;
    }
    Call shared = copies_of_one(plain, 2);  // the exact cache of copies that differ from token 30 on
    ExactCacheAttention exact;
    shared.input.batch = &shared.batch;
    const at::Tensor whole = exact.attend(shared.input).narrow(0, 30, 40);
    const auto cut = [&](const at::Tensor& x) {
      return at::cat({x.narrow(0, 0, kLatentTokens), x.narrow(0, kLatentTokens + 30, 40)});
    };
    const SequenceBatch batch = shared_start_batch(30, kLatentTokens, 2);
    AttentionInput input = shared.input;
    input.batch = &batch;
    input.asked = at::cat({at::arange(30, 70, at::kLong), at::arange(70, 110, at::kLong)});
    for (at::Tensor* x : {&input.k, &input.v, &input.k_rope}) *x = cut(*x);
    for (at::Tensor* x : {&input.q, &input.q_rope}) *x = cut(*x).index_select(0, input.asked);
    SharedStartAttention start;
    const at::Tensor both = start.attend(input);
    for (const std::int64_t first : {0, 40}) {
      EXPECT_LT(((both.narrow(0, first, 40) - whole).norm() / whole.norm()).item<double>(), 2e-5);
    }
  }
}

}  // namespace
}  // namespace oscar
