// Writes codec_vectors.json: rows and their encodings. usage: write_codec_vectors OUTPUT
// Numbers are hexadecimal. Rows and decoded rows are little-endian FP32, and codes have one digit each. Packed and
// stored data are the bytes of the interchange view and of the parameters.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>

#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "codec/codec.h"
#include "layout/float16.h"
#include "tests/golden/interchange_codes.h"
#include "tests/golden/writer.h"

namespace oscar {
namespace {

// Standard normal from twelve uniforms: only additions, so that no library function affects a bit.
float normal(std::uint64_t seed, std::uint64_t i) {
  double sum = -6.0;
  for (std::uint64_t k = 0; k < 12; ++k) sum += random_unit(seed, k, i);
  return static_cast<float>(sum);
}

float round_to_bfloat16(float value) { return bfloat16_value(bfloat16_bits(value)); }

struct Kind {
  const char* name;
  std::function<float(std::uint64_t seed, std::uint64_t i)> value;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"gaussian", [](auto s, auto i) { return round_to_bfloat16(normal(s, i)); }},
      {"float32", [](auto s, auto i) { return normal(s, i) * 3.1f; }},
      {"outliers", [](auto s, auto i) { return round_to_bfloat16(normal(s, i) * (i % 37 == 5 ? 30.0f : 1.0f)); }},
      {"offset", [](auto s, auto i) { return round_to_bfloat16(40.0f + normal(s, i)); }},
      {"negative offset", [](auto s, auto i) { return -1000.0f + normal(s, i); }},
      {"constant", [](auto, auto) { return -0.3f; }},
      {"zero", [](auto, auto i) { return i % 3 == 0 ? -0.0f : 0.0f; }},
      {"two levels", [](auto, auto i) { return i % 3 == 0 ? -1.0f : 2.0f; }},
      {"ramp", [](auto, auto i) { return static_cast<float>(i) * 0.125f - 3.0f; }},
      {"small", [](auto s, auto i) { return normal(s, i) * 1e-6f; }},
      {"subnormal", [](auto s, auto i) { return normal(s, i) * 1e-41f; }},
      {"large", [](auto s, auto i) { return normal(s, i) * 1e6f; }},
      {"huge", [](auto s, auto i) { return normal(s, i) * 1e37f; }}};
  return all;
}

Json describe(const RowCodec& codec) {
  Json j;
  j["layout"] = to_string(codec.code.layout);
  j["head_dim"] = codec.code.head_dim;
  if (codec.code.layout == Layout::kUniform) {
    j["group"] = codec.code.quant_group;
    j["params"] = codec.code.params == ParamType::kFloat16 ? "float16" : "bfloat16";
  } else {
    j["widths"] = codec.code.widths;
    j["sigma"] = codec.sigma;
    if (codec.code.refined) j["refined"] = true;
  }
  j["side"] = codec.side == Side::kKey ? "key" : "value";
  j["encoder"] = to_string(codec.encoder);
  j["clip"] = hex(&codec.clip, sizeof(float));
  return j;
}

Json encode(const RowCodec& codec, const char* kind, const std::vector<float>& row) {
  const RowCode& code = codec.code;
  std::vector<std::uint8_t> codes(row.size()), params(static_cast<std::size_t>(code.param_bytes()));
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(code.code_bytes()));
  std::vector<float> decoded(row.size());
  encode_rows(codec, row.data(), 1, 0, codes.data(), params.data());
  decode_rows(codec, codes.data(), params.data(), 1, decoded.data(), 0);
  pack_codes(code, codes, packed);
  std::string digits;
  for (const std::uint8_t c : codes) digits += "0123456789abcdef"[c];
  Json j;
  j["kind"] = kind;
  j["row"] = hex(row.data(), row.size() * sizeof(float));
  j["codes"] = digits;
  j["packed"] = hex(packed.data(), packed.size());
  j["stored"] = hex(params.data(), params.size());
  j["decoded"] = hex(decoded.data(), decoded.size() * sizeof(float));
  return j;
}

std::vector<RowCodec> codecs() {
  std::vector<RowCodec> all;
  for (const Encoder encoder : {Encoder::kMinMax, Encoder::kSearch}) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (encoder == Encoder::kMinMax) {
        all.push_back({uniform_code(64), side, encoder, side == Side::kKey ? 0.96f : 0.92f});
        all.push_back({uniform_code(80, 40, ParamType::kBFloat16), side, encoder, side == Side::kKey ? 0.0f : 0.95f});
      } else {
        all.push_back({uniform_code(64), side, encoder, 0.0f});
        all.push_back({uniform_code(96, 48, ParamType::kBFloat16), side, encoder, side == Side::kKey ? 0.0f : 0.97f});
      }
      all.push_back({band_code(64, {4, 2, 1, 0}), side, encoder, 0.0f, {1.0f, 1.0f, 0.75f, 0.5f}});
    }
  }
  all.push_back({uniform_code(128), Side::kKey, Encoder::kMinMax, 0.96f});
  all.push_back({uniform_code(128, 32), Side::kValue, Encoder::kSearch, 0.0f});
  all.push_back({band_code(128, {4, 4, 2, 1}), Side::kKey, Encoder::kSearch, 0.98f, {2.0f, 1.5f, 1.0f, 0.6f}});
  all.push_back(
      {band_code(64, {4, 2, 1, 2}, true), Side::kValue, Encoder::kSearch, 0.0f, {0.125f, 0.5f, 1.0f, 0.0625f}});
  all.push_back({band_code(64, {2, 0, 1, 4}, true), Side::kKey, Encoder::kMinMax, 0.95f, {0.5f, 1.0f, 1.0f, 0.1f}});
  return all;
}

void write(const fs::path& path) {
  Json file;
  file["format_version"] = 1;
  file["cases"] = Json::array();
  std::uint64_t seed = 0;
  for (const RowCodec& codec : codecs()) {
    Json c = describe(codec);
    c["rows"] = Json::array();
    const bool every_kind = codec.code.head_dim < 128;
    for (std::size_t k = 0; k < (every_kind ? kinds().size() : 3); ++k) {
      std::vector<float> row(static_cast<std::size_t>(codec.code.head_dim));
      ++seed;
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = kinds()[k].value(seed, i);
      c["rows"].push_back(encode(codec, kinds()[k].name, row));
    }
    file["cases"].push_back(c);
  }
  write_file_atomic(path, file.dump(1, ' ') + "\n");
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::run_writer(argc, argv, "write_codec_vectors OUTPUT", oscar::write); }
