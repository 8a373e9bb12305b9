#include "export/rotation_pt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/message_of.h"
#include "support/temp_directory.h"
#include "torch_file/interop.h"
#include "torch_file/torch_pt.h"

namespace oscar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An array of `shape` that counts up from `start`.
RotationArray counting(std::vector<std::int64_t> shape, float start) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = start + static_cast<float>(i);
  return {std::move(shape), std::move(values)};
}
PtTensor tensor(std::vector<std::int64_t> shape, float start = 0) {
  const RotationArray a = counting(std::move(shape), start);
  return PtTensor::own(a.shape, a.values);
}

RotationFile version_one() {
  RotationFile file;
  file.objective = "qqt_r_h_pbr";
  file.source_grouping = "layer";
  file.extra =
      Json{{"calibration", {{"tokens", 30000}, {"post_rope", true}, {"x", 0.5}, {"n", nullptr}, {"l", {1, "a"}}}}};
  for (const std::int64_t id : {3, 7, 31}) {
    file.layers.push_back({id, counting({4, 4}, static_cast<float>(id)), counting({4}, 0)});
  }
  return file;
}

void expect_equal(const RotationFile& a, const RotationFile& b) {
  EXPECT_EQ(a.format_version, b.format_version);
  EXPECT_EQ(a.objective, b.objective);
  EXPECT_EQ(a.source_grouping, b.source_grouping);
  EXPECT_EQ(a.extra, b.extra);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].layer, b.layers[i].layer);
    EXPECT_EQ(a.layers[i].rotation.shape, b.layers[i].rotation.shape);
    EXPECT_EQ(a.layers[i].rotation.values, b.layers[i].rotation.values);
    EXPECT_EQ(a.layers[i].eigenvalues.shape, b.layers[i].eigenvalues.shape);
    EXPECT_EQ(a.layers[i].eigenvalues.values, b.layers[i].eigenvalues.values);
  }
}

TEST(RotationPt, VersionOneRoundTripsBitForBit) {
  const TempDirectory dir;
  const RotationFile file = version_one();
  write_rotation_pt(dir / "k.pt", file);
  const RotationFile read = read_rotation_pt(dir / "k.pt");
  expect_equal(read, file);
  EXPECT_EQ(read.layers[1].head_dim(), 4);
  EXPECT_EQ(read.layers[1].heads(), 0);
  fs::create_directory(dir / "again");
  write_rotation_pt(dir / "again" / "k.pt", read);
  EXPECT_EQ(read_file(dir / "k.pt"), read_file(dir / "again" / "k.pt"));
}

TEST(RotationPt, VersionTwoRoundTrips) {
  const TempDirectory dir;
  RotationFile file;
  file.format_version = 2;
  file.objective = "cov_eig_hadamard_perhead";
  file.source_grouping = "per_kv_head";
  file.layers.push_back({0, counting({2, 4, 4}, 1), {}});
  file.layers.push_back({1, counting({2, 4, 4}, 9), {}});
  write_rotation_pt(dir / "k_perhead.pt", file);
  const RotationFile read = read_rotation_pt(dir / "k_perhead.pt");
  expect_equal(read, file);
  EXPECT_EQ(read.layers[0].heads(), 2);
}

// The dictionary of a file as torch would hold it; `change` edits it before it is read.
using Change = std::function<void(PtDict& top, PtDict& layer)>;
std::string refusal(const Change& change) {
  PtDict layer{{"layer_id", 5}, {"rotation", tensor({4, 4})}, {"eigenvalues", tensor({4})}};
  PtDict top{{"format_version", 1}, {"objective", "o"}, {"source_grouping", "layer"}};
  change(top, layer);
  if (find_key(top, "layers") == nullptr) top.emplace_back("layers", PtDict{{5, layer}});
  return message_of([&] { parse_rotation_pt(top, "k.pt"); });
}
void set(PtDict& dict, const char* key, PtValue value) {
  for (auto& [name, old] : dict) {
    if (*name.as<std::string>() == key) {
      old = std::move(value);
      return;
    }
  }
  dict.emplace_back(key, std::move(value));
}
std::string with_layer(const char* key, PtValue value) {
  return refusal([&](PtDict&, PtDict& layer) { set(layer, key, std::move(value)); });
}
std::string with_top(const char* key, PtValue value) {
  return refusal([&](PtDict& top, PtDict&) { set(top, key, std::move(value)); });
}

TEST(RotationPt, ReadsOtherSpellings) {
  EXPECT_EQ(refusal([](PtDict&, PtDict&) {}), "(no error)");
  const PtDict text_keys{
      {"grouping", "layer"},
      {"layers", PtDict{{"11", PtDict{{"rotation", tensor({2, 2})}}}, {"2", PtDict{{"rotation", tensor({8, 8})}}}}}};
  const RotationFile file = parse_rotation_pt(text_keys, "k.pt");
  EXPECT_EQ(file.format_version, 1);
  EXPECT_EQ(file.source_grouping, "layer");
  ASSERT_EQ(file.layers.size(), 2u);
  EXPECT_EQ(file.layers[0].layer, 2);  // numbers, not text, are sorted
  EXPECT_EQ(file.layers[0].head_dim(), 8);
  EXPECT_EQ(file.layers[1].head_dim(), 2);  // sizes may differ between layers
}

TEST(RotationPt, ReadsVersionThreeFields) {
  const PtDict layer{
      {"rotation", tensor({4, 4})}, {"q_rotation", tensor({4, 4})}, {"k_mean", tensor({2, 4})}, {"o_rotation", {}}};
  const PtDict top{{"format_version", 3},
                   {"source_grouping", "layer"},
                   {"objective", "oscar2_x"},
                   {"transform", PtDict{{"centered", true}, {"t", tensor({3})}}},
                   {"layers", PtDict{{0, layer}}}};
  const RotationFile file = parse_rotation_pt(top, "k.pt");
  EXPECT_THAT(file.layers[0].k_mean.shape, ElementsAre(2, 4));
  EXPECT_FALSE(file.layers[0].q_rotation.empty());
  EXPECT_TRUE(file.layers[0].o_rotation.empty());
  EXPECT_EQ(file.extra["transform"]["centered"], true);
  EXPECT_EQ(file.extra["transform"]["t"], "tensor F32 [3]");
}

TEST(RotationPt, ConvertsHalfPrecision) {
  const PtTensor t = PtTensor::own(DType::kBF16, {1, 1}, {std::byte{0x80}, std::byte{0x3f}});
  const PtDict top{{"layers", PtDict{{0, PtDict{{"rotation", t}}}}}};
  EXPECT_THAT(parse_rotation_pt(top, "k.pt").layers[0].rotation.values, ElementsAre(1.0f));
}

TEST(RotationPt, RefusesNewerVersionsByName) {
  EXPECT_THAT(with_top("format_version", 4),
              AllOf(HasSubstr("format_version 4, newer than the 3"), HasSubstr("update")));
  EXPECT_THAT(with_top("format_version", 0), HasSubstr("not a positive integer"));
  EXPECT_THAT(with_top("format_version", "1"), HasSubstr("not a positive integer"));
}

TEST(RotationPt, RefusesOtherDictionaries) {
  EXPECT_THAT(with_top("layers", PtList{}), HasSubstr("has no dictionary 'layers'"));
  EXPECT_THAT(with_top("layers", PtDict{}), HasSubstr("has no layers"));
  EXPECT_THAT(with_top("objective", 3), HasSubstr("'objective' is an integer, expected text"));
  EXPECT_THAT(with_top("layers", PtDict{{"x", PtDict{}}}), HasSubstr("not a layer number"));
  EXPECT_THAT(with_top("layers", PtDict{{-1, PtDict{}}}), HasSubstr("not a layer number"));
  EXPECT_THAT(with_top("layers", PtDict{{0, tensor({4, 4})}}), HasSubstr("layer 0 is a tensor, expected a dictionary"));
  const PtDict good{{"rotation", tensor({4, 4})}};
  EXPECT_THAT(with_top("layers", PtDict{{3, good}, {"3", good}}), HasSubstr("layer 3 twice"));
  EXPECT_THAT(message_of([] { parse_rotation_pt(3, "k.pt"); }), HasSubstr("holds an integer"));
  EXPECT_THAT(refusal([](PtDict& top, PtDict&) { top.emplace_back(3, 3); }), HasSubstr("not text"));
}

TEST(RotationPt, RefusesWrongLayers) {
  EXPECT_THAT(with_layer("layer_id", 6), HasSubstr("layer 5 states another layer_id"));
  EXPECT_THAT(with_layer("rotation", "x"), HasSubstr("layer 5 has no tensor 'rotation'"));
  EXPECT_THAT(with_layer("rotation", tensor({4, 5})), HasSubstr("shape [4, 5], expected [d, d]"));
  EXPECT_THAT(with_layer("rotation", tensor({16})), HasSubstr("shape [16]"));
  EXPECT_THAT(with_layer("rotation", tensor({1, 2, 2, 4})), HasSubstr("shape [1, 2, 2, 4]"));
  EXPECT_THAT(with_layer("rotation", tensor({0, 0})), HasSubstr("shape [0, 0]"));
  EXPECT_THAT(with_layer("rotation", PtTensor::own(DType::kI64, {1, 1}, std::vector<std::byte>(8))),
              HasSubstr("elements of I64"));
  EXPECT_THAT(with_layer("eigenvalues", tensor({5})), HasSubstr("'eigenvalues' of shape [5], which does not fit"));
  EXPECT_THAT(with_layer("eigenvalues", 1), HasSubstr("an integer as 'eigenvalues'"));
  EXPECT_THAT(with_layer("k_mean", tensor({4})), HasSubstr("'k_mean' of shape [4]"));
  EXPECT_THAT(with_layer("q_rotation", tensor({2, 4, 4})), HasSubstr("'q_rotation' of shape [2, 4, 4]"));
  EXPECT_THAT(with_layer("mystery", tensor({4})), HasSubstr("unknown tensor 'mystery'"));
  EXPECT_EQ(with_layer("note", "text"), "(no error)");
  for (const float bad : {NAN, INFINITY}) {
    PtTensor t = PtTensor::own({2, 2}, {1, 0, bad, 1});
    EXPECT_THAT(with_layer("rotation", t), HasSubstr(std::isnan(bad) ? "holds NaN at element 2" : "holds infinity"));
  }
}

TEST(RotationPt, RefusesMixedLayers) {
  const PtDict plain{{"rotation", tensor({4, 4})}}, heads{{"rotation", tensor({2, 4, 4})}};
  const PtDict valued{{"rotation", tensor({4, 4})}, {"eigenvalues", tensor({4})}};
  EXPECT_THAT(with_top("layers", PtDict{{0, plain}, {1, heads}}),
              HasSubstr("rotation for each head in layer 1 but one"));
  EXPECT_THAT(with_top("layers", PtDict{{0, plain}, {1, valued}}), HasSubstr("'eigenvalues' in some layers only"));
}

TEST(RotationPt, RefusesExpandedTensorsThatWouldFillMemory) {
  PtTensor wide = tensor({1});
  wide.shape = {1024, 1024, 1024};
  wide.strides = {0, 0, 0};
  EXPECT_THAT(with_layer("rotation", wide), HasSubstr("more than 1.0 GiB"));
}

TEST(RotationPt, BareTensors) {
  const TempDirectory dir;
  fs::create_directory(dir / "mla");
  for (const int id : {0, 2, 10}) {
    write_torch_pt(dir / "mla" / ("layer_" + std::to_string(id) + ".pt"), tensor({4, 4}, static_cast<float>(id)));
  }
  const RotationFile all = read_rotation_pt(dir / "mla");
  EXPECT_EQ(all.objective, "bare");
  ASSERT_EQ(all.layers.size(), 3u);
  EXPECT_EQ(all.layers[2].layer, 10);
  EXPECT_EQ(all.layers[2].rotation.values[0], 10.0f);
  EXPECT_EQ(read_rotation_pt(dir / "mla" / "layer_2.pt").layers[0].layer, 2);
  write_torch_pt(dir / "other.pt", tensor({4, 4}));
  EXPECT_THAT(message_of([&] { read_rotation_pt(dir / "other.pt"); }), HasSubstr("name it layer_<number>.pt"));
  write_torch_pt(dir / "mla" / "layer_5.pt", PtValue(3));
  EXPECT_THAT(message_of([&] { read_rotation_pt(dir / "mla"); }), HasSubstr("layer_5.pt: holds an integer"));
  EXPECT_THAT(message_of([&] { read_rotation_pt(dir.path()); }), HasSubstr("no files named layer_<number>.pt"));
}

TEST(RotationPtWriter, RefusesWhatTheVersionCannotHold) {
  const TempDirectory dir;
  const auto write = [&](const std::function<void(RotationFile&)>& change) {
    RotationFile file = version_one();
    change(file);
    return message_of([&] { write_rotation_pt(dir / "k.pt", file); });
  };
  EXPECT_THAT(write([](RotationFile& f) { f.format_version = 4; }), HasSubstr("not written, only 1 to 3"));
  EXPECT_THAT(write([](RotationFile& f) { f.format_version = 2; }), HasSubstr("needs [heads, d, d]"));
  EXPECT_THAT(write([](RotationFile& f) { f.layers[0].rotation = counting({2, 4, 4}, 0); }), HasSubstr("needs [d, d]"));
  EXPECT_THAT(write([](RotationFile& f) {
                f.layers[0].eigenvalues.values = {4, 3, 2, 1};
              }),
              HasSubstr("not ascending"));
  EXPECT_THAT(write([](RotationFile& f) { f.layers[0].k_mean = counting({2, 4}, 0); }), HasSubstr("cannot carry"));
  EXPECT_THAT(write([](RotationFile& f) { f.extra["layers"] = 1; }), HasSubstr("'layers' twice"));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

class Interop : public ::testing::Test {
 protected:
  void SetUp() override {
    if (interop_folder().empty()) GTEST_SKIP() << "no folder of published files";
  }
  static RotationFile read(const char* name) { return read_rotation_pt(interop_folder() / name); }
  // max |R R^T - I| over the rows of a [d, d] matrix
  static double orthogonality_error(const RotationLayer& layer) {
    const auto d = static_cast<std::size_t>(layer.head_dim());
    double worst = 0;
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double dot = i == j ? -1 : 0;
        for (std::size_t k = 0; k < d; ++k) {
          dot += static_cast<double>(layer.rotation.values[i * d + k]) * layer.rotation.values[j * d + k];
        }
        worst = std::max(worst, std::fabs(dot));
      }
    }
    return worst;
  }
};

TEST_F(Interop, PublishedVersionOne) {
  for (const char* name : {"qwen3-8b.k_rotation_qqt_r_h_pbr.pt", "qwen3-8b.v_rotation_sst_r_h_pbr.pt"}) {
    const RotationFile file = read(name);
    EXPECT_EQ(file.format_version, 1);
    EXPECT_EQ(file.source_grouping, "layer");
    ASSERT_EQ(file.layers.size(), 36u);
    for (std::size_t i = 0; i < file.layers.size(); ++i) {
      EXPECT_EQ(file.layers[i].layer, static_cast<std::int64_t>(i));
      EXPECT_THAT(file.layers[i].rotation.shape, ElementsAre(128, 128));
      EXPECT_TRUE(std::is_sorted(file.layers[i].eigenvalues.values.begin(), file.layers[i].eigenvalues.values.end()));
    }
    EXPECT_LT(orthogonality_error(file.layers[17]), 1e-5);
  }
}

TEST_F(Interop, SparseLayersAndSharedStorages) {
  const RotationFile fitted = read("qwen3.5-4b.calibrated.v_rotation.pt");
  std::vector<std::int64_t> ids;
  for (const RotationLayer& layer : fitted.layers) ids.push_back(layer.layer);
  EXPECT_THAT(ids, ElementsAre(3, 7, 11, 15, 19, 23, 27, 31));
  const RotationFile hadamard = read("qwen3.5-4b.hadamard.k_rotation.pt");
  EXPECT_EQ(hadamard.objective, "hadamard");
  ASSERT_EQ(hadamard.layers.size(), 8u);
  for (const RotationLayer& layer : hadamard.layers) {
    EXPECT_EQ(layer.rotation.values, hadamard.layers[0].rotation.values);
    EXPECT_FLOAT_EQ(std::fabs(layer.rotation.values[5]), 1.0f / 16.0f);
  }
}

TEST_F(Interop, WrittenAgainTheContentIsTheSame) {
  const TempDirectory dir;
  const RotationFile file = read("qwen3-8b.k_rotation_qqt_r_h_pbr.pt");
  write_rotation_pt(dir / "k.pt", file);
  expect_equal(read_rotation_pt(dir / "k.pt"), file);
}

}  // namespace
}  // namespace oscar
