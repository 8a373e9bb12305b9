// The codec against the golden vectors, which a separate Python implementation checks as well.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "base/files.h"
#include "base/json.h"
#include "codec/codec.h"
#include "support/paths.h"
#include "tests/golden/interchange_codes.h"

namespace oscar {
namespace {

std::vector<std::uint8_t> bytes_of(const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> floats_of(const std::string& hex) {
  const std::vector<std::uint8_t> bytes = bytes_of(hex);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

RowCodec codec_of(const Json& c) {
  const int d = c["head_dim"];
  RowCodec codec;
  if (c["layout"] == "uniform") {
    codec.code = uniform_code(d, c["group"], c["params"] == "float16" ? ParamType::kFloat16 : ParamType::kBFloat16);
  } else {
    codec.code = band_code(d, c["widths"].get<std::array<std::uint8_t, 4>>(), c.contains("refined"));
    codec.sigma = c["sigma"].get<std::array<float, 4>>();
  }
  codec.side = c["side"] == "key" ? Side::kKey : Side::kValue;
  codec.encoder = parse_encoder(c["encoder"]);
  codec.clip = floats_of(c["clip"])[0];
  return codec;
}

#ifndef OSCAR_VARIANT
#define OSCAR_VARIANT "clones"
#define OSCAR_SUITE GoldenVectors
#endif

TEST(OSCAR_SUITE, AreReproducedBitForBit) {
  if (std::string(OSCAR_VARIANT) == "avx2" && (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))) {
    GTEST_SKIP() << "this processor has no AVX2";
  }
  const Json file = read_json(fs::path(OSCAR_SOURCE_DIR) / "sample_data" / "golden" / "codec_vectors.json");
  std::size_t rows = 0;
  for (const Json& c : file["cases"]) {
    const RowCodec codec = codec_of(c);
    for (const Json& r : c["rows"]) {
      SCOPED_TRACE(c["layout"].get<std::string>() + " " + c["encoder"].get<std::string>() + " " +
                   r["kind"].get<std::string>());
      const std::vector<float> row = floats_of(r["row"]), decoded = floats_of(r["decoded"]);
      std::vector<std::uint8_t> codes(row.size()), params(static_cast<std::size_t>(codec.code.param_bytes()));
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(codec.code.code_bytes())), unpacked(row.size());
      encode_rows(codec, row.data(), 1, 0, codes.data(), params.data());
      std::string digits;
      for (const std::uint8_t q : codes) digits += "0123456789abcdef"[q];
      EXPECT_EQ(digits, r["codes"].get<std::string>());
      EXPECT_EQ(params, bytes_of(r["stored"]));
      pack_codes(codec.code, codes, packed);
      EXPECT_EQ(packed, bytes_of(r["packed"]));
      unpack_codes(codec.code, packed, unpacked);
      EXPECT_EQ(unpacked, codes);
      std::vector<float> back(row.size());
      decode_rows(codec, codes.data(), params.data(), 1, back.data(), 0);
      EXPECT_EQ(std::memcmp(back.data(), decoded.data(), back.size() * 4), 0);
      std::fill(back.begin(), back.end(), 0.0f);
      quantize_rows(codec, row.data(), 1, 0, back.data(), 0);
      EXPECT_EQ(std::memcmp(back.data(), decoded.data(), back.size() * 4), 0);
      ++rows;
    }
  }
  EXPECT_EQ(rows, 191u);
}

}  // namespace
}  // namespace oscar
