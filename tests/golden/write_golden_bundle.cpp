// Writes bundle/ and bundle_rows.json: a small bundle of layout blocks, and the cache content for given keys and
// values. usage: write_golden_bundle FOLDER
// Matrices, means and rows are multiples of powers of two, so every product with them is exact. A reader thus gets the
// same bits in any order of summation.
#include <ATen/ATen.h>

#include <bit>
#include <cmath>

#include "attention/begin_step.h"
#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "bundle/bundle.h"
#include "cache/kv_method.h"
#include "tests/golden/interchange_codes.h"
#include "tests/golden/writer.h"

namespace oscar {
namespace {

constexpr std::int64_t kDim = 32, kHeads = 2, kRows = 4;

// Multiples of 1/16 from -4 to 4.
at::Tensor dyadic(std::uint64_t seed, at::IntArrayRef shape) {
  const at::Tensor out = at::empty(shape, at::kFloat);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    const auto steps = static_cast<float>(random_bits(seed, static_cast<std::uint64_t>(i), 0) % 129);
    out.mutable_data_ptr<float>()[i] = (steps - 64.0f) / 16.0f;
  }
  return out;
}

// [kDim] powers of two from 1/2 to 2.
at::Tensor powers(std::uint64_t seed) {
  const at::Tensor out = at::empty({kDim}, at::kFloat);
  for (std::int64_t i = 0; i < kDim; ++i) {
    const auto exponent = static_cast<int>(random_bits(seed, static_cast<std::uint64_t>(i), 1) % 3) - 1;
    out.mutable_data_ptr<float>()[i] = std::ldexp(1.0f, exponent);
  }
  return out;
}

// A H B with H of +-1 and diagonal A, B: not orthogonal, and its inverse is exact too.
SideTransform side(std::uint64_t seed, bool key, std::vector<std::uint8_t> widths) {
  const at::Tensor h = at::empty({kDim, kDim}, at::kFloat);
  for (unsigned i = 0; i < kDim; ++i) {
    for (unsigned j = 0; j < kDim; ++j) {
      h.mutable_data_ptr<float>()[i * kDim + j] = std::popcount(i & j) % 2 == 0 ? 1.0f : -1.0f;
    }
  }
  std::vector<at::Tensor> forward, back;
  for (std::uint64_t head = 0; head < kHeads; ++head) {
    const at::Tensor a = powers(seed + 2 * head).unsqueeze(1), b = powers(seed + 2 * head + 1) / 8.0;
    forward.push_back(a * h * b);
    const at::Tensor query = h / a / b / static_cast<double>(kDim);  // forward^T query = 1
    back.push_back(key ? query : query.t());
  }
  SideTransform t;
  t.forward = at::stack(forward).contiguous();
  (key ? t.query_side : t.inverse) = at::stack(back).contiguous();
  t.eigenvalues = at::ones({kHeads, kDim}, at::kFloat);
  t.mean = dyadic(seed + 100, {kHeads, kDim});
  t.clip = {0.0f};
  t.widths = std::move(widths);
  if (t.blocks()) t.sigma = at::tensor({1.0f, 0.75f, 2.0f, 0.5f, 1.25f, 1.0f, 0.3f, 4.0f}).view({kHeads, 4});
  return t;
}

// Keys in blocks of every width; values in two of the widths or, in layer 1, of layout uniform.
Bundle golden_bundle() {
  Bundle bundle;
  bundle.method = "waterfill", bundle.scope = "head", bundle.encoder = "search";
  bundle.model_fingerprint = "v2:sha256:" + std::string(64, '0');
  bundle.model = {{"name", "golden"},   {"architecture", "Qwen3ForCausalLM"},
                  {"layers", 2},        {"query_heads", 2 * kHeads},
                  {"kv_heads", kHeads}, {"head_dim", kDim}};
  bundle.windows = {4, 8};
  bundle.hadamard_block = kDim;
  bundle.provenance = {{"tool", "write_golden_bundle"}};
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const auto seed = static_cast<std::uint64_t>(10 * layer);
    bundle.layers.push_back(
        {layer, kDim, kHeads, side(seed + 1, true, {4, 2, 1, 0}),
         side(seed + 6, false, layer == 0 ? std::vector<std::uint8_t>{0, 4, 0, 2} : std::vector<std::uint8_t>{})});
  }
  return bundle;
}

Json tokens_of(const KvMethod& method, std::int64_t layer, Side which) {
  const at::Tensor raw =
      dyadic(static_cast<std::uint64_t>(1000 + 10 * layer + (which == Side::kKey ? 0 : 1)), {kRows, kHeads, kDim});
  const at::Tensor rounded = transformed_rows(raw, method.transform(layer, which));  // BF16
  Json tokens = Json::array();
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const RowCodec codec = method.codec(layer, which, head);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const at::Tensor x = rounded[row][head].to(at::kFloat).contiguous();
      std::vector<std::uint8_t> codes(kDim), packed(static_cast<std::size_t>(codec.code.code_bytes()));
      std::vector<std::uint8_t> params(static_cast<std::size_t>(codec.code.param_bytes()));
      std::vector<float> decoded(kDim);
      encode_rows(codec, x.const_data_ptr<float>(), 1, 0, codes.data(), params.data());
      decode_rows(codec, codes.data(), params.data(), 1, decoded.data(), 0);
      pack_codes(codec.code, codes, packed);
      const at::Tensor model = raw[row][head].contiguous(), window = rounded[row][head].contiguous();
      tokens.push_back({{"layer", layer},
                        {"side", which == Side::kKey ? "key" : "value"},
                        {"head", head},
                        {"row", hex(model.const_data_ptr(), model.nbytes())},
                        {"window", hex(window.const_data_ptr(), window.nbytes())},
                        {"packed", hex(packed.data(), packed.size())},
                        {"stored", hex(params.data(), params.size())},
                        {"decoded", hex(decoded.data(), decoded.size() * sizeof(float))}});
    }
  }
  return tokens;
}

void write(const fs::path& folder) {
  const Bundle bundle = golden_bundle();
  save_bundle(bundle, folder / "bundle", true);
  ModelConfig model;
  model.layers = 2, model.query_heads = 2 * kHeads, model.kv_heads = kHeads, model.head_dim = kDim;
  const KvMethod method = make_method("waterfill", model, &bundle, {4, 8, 1});
  Json file = {{"format_version", 1}, {"tokens", Json::array()}};
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    for (const Side which : {Side::kKey, Side::kValue}) {
      for (Json& token : tokens_of(method, layer, which)) file["tokens"].push_back(std::move(token));
    }
  }
  write_file_atomic(folder / "bundle_rows.json", file.dump(1, ' ') + "\n");
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::run_writer(argc, argv, "write_golden_bundle FOLDER", oscar::write); }
