// Profiles of the one vector of latent attention against the cache that a bundle of these widths makes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attention/scenario.h"
#include "curves/profile_attention.h"
#include "rotation/latent_fit.h"

namespace oscar {
namespace {

constexpr std::int64_t kVectorTokens = 70;
const CacheWindows kVectorWindows{4, 10, 1};

Scenario vectors(const Widths& widths, Basis basis) {
  Scenario s = make_scenario(160, 1, 3, basis, kVectorWindows, band_code(160, widths));
  for (LayerCode& code : s.method.codes) code.key_sigma = code.value_sigma = {{1.0f, 1.0f, 0.5f, 0.5f}};
  for (LayerTransform& t : s.method.layers) t.value = as_value_side(t.key);
  s.method.one_vector = true;
  s.model.latent.rank = 128, s.model.latent.rotated = 32;
  return s;
}

// `copies` of one sequence, whose values are its keys.
Call copies_of_one(const Scenario& s, std::int64_t copies) {
  Call call = make_call(s, std::vector<std::int64_t>(static_cast<std::size_t>(copies), kVectorTokens), 5);
  for (at::Tensor* x : {&call.input.q, &call.input.k}) *x = x->narrow(0, 0, kVectorTokens).repeat({copies, 1, 1});
  call.input.v = call.input.k;
  return call;
}

TEST(VectorProfiles, AreWhatACacheOfTheseWidthsGives) {
  for (const Basis basis : {Basis::kIdentity, Basis::kLayer, Basis::kCentered, Basis::kSkewed}) {
    const std::vector<Widths> profiles{{4, 2, 1, 0}, {2, 2, 0, 0}, {4, 4, 4, 4}};
    const WidthMethods methods{vectors({1, 1, 1, 1}, basis).method, vectors({2, 2, 2, 2}, basis).method,
                               vectors({4, 4, 4, 4}, basis).method};
    ProfileAttention attention(methods, Side::kKey, profiles, true);
    const Scenario plain = vectors(profiles[0], basis);
    Call call = copies_of_one(plain, 4);
    call.input.batch = &call.batch;
    const at::Tensor found = attention.attend(call.input);
    Call single = copies_of_one(plain, 1);
    single.input.batch = &single.batch;
    for (std::size_t p = 0; p <= profiles.size(); ++p) {
      Scenario s = p < profiles.size() ? vectors(profiles[p], basis) : plain;
      s.method.quantized = p < profiles.size();  // the last copy is transformed alone
      SimulatedPrefillAttention prefill(s.method);
      const at::Tensor expected = prefill.attend(single.input);
      const at::Tensor copy = found.narrow(0, static_cast<std::int64_t>(p) * kVectorTokens, kVectorTokens);
      EXPECT_LT(((copy - expected).norm() / expected.norm()).item<double>(), 2e-5) << "profile " << p;
    }
  }
}

}  // namespace
}  // namespace oscar
