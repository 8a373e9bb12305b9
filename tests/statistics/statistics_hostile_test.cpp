// Statistics files as an attacker or a broken disk would leave them: each one is an InputError that names the fault.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <limits>

#include "base/errors.h"
#include "checkpoint/safetensors.h"
#include "statistics/random_statistics.h"
#include "statistics/statistics.h"
#include "support/altered_tensors.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class HostileStatistics : public testing::Test {
 protected:
  fs::path path() const { return dir_ / "s.safetensors"; }

  // The message load_statistics() refuses the file with.
  std::string refusal() const {
    try {
      load_statistics(path());
    } catch (const InputError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path().string()));
      return e.what();
    } catch (const NumericalError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path().string()));
      return std::string("numerical: ") + e.what();
    }
    return "accepted";
  }

  void write(std::string_view content) const { std::ofstream(path(), std::ios::binary) << content; }  // no fsync

  // Writes a good file with its metadata changed.
  std::string with_metadata(const std::function<void(std::map<std::string, std::string>&, Json&)>& change) {
    save_statistics(random_statistics({}), path());
    const SafetensorsFile file = SafetensorsFile::open(path());
    auto metadata = file.metadata();
    Json oscar = Json::parse(metadata.at("oscar"));
    const std::string before = oscar.dump();
    change(metadata, oscar);
    if (oscar.dump() != before) metadata["oscar"] = oscar.dump();
    write_safetensors(path(), file.tensors(), metadata);
    return refusal();
  }

  // Writes a good file with its tensors changed.
  std::string with_tensors(const std::function<void(std::vector<TensorView>&)>& change) {
    save_statistics(random_statistics({}), path());
    const SafetensorsFile file = SafetensorsFile::open(path());
    auto tensors = file.tensors();
    change(tensors);
    write_safetensors(path(), tensors, file.metadata());
    return refusal();
  }

  // Writes a good file in which one tensor's values were changed.
  std::string with_values(const std::string& name, const std::function<void(at::Tensor&)>& change) {
    at::Tensor t;
    return with_tensors([&](std::vector<TensorView>& tensors) {
      for (TensorView& view : tensors) {
        if (view.name != name) continue;
        t = at::empty(view.shape, view.dtype == DType::kF64 ? at::kDouble : at::kFloat);
        std::memcpy(t.mutable_data_ptr(), view.data.data(), view.data.size());
        change(t);
        view.data = {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
        view.shape = t.sizes().vec();
      }
    });
  }

  TempDirectory dir_;
};

TEST_F(HostileStatistics, GoodFileIsAccepted) {
  EXPECT_EQ(with_metadata([](auto&, auto&) {}), "accepted");
  EXPECT_EQ(with_tensors([](auto&) {}), "accepted");
}

TEST_F(HostileStatistics, Metadata) {
  const auto text = [&](const char* key, const char* value) {
    return with_metadata([=](auto& m, auto&) { m[key] = value; });
  };
  EXPECT_THAT(with_metadata([](auto& m, auto&) { m.erase("format"); }), HasSubstr("not a statistics file"));
  EXPECT_THAT(text("format", "pt"), HasSubstr("not a statistics file"));
  EXPECT_THAT(text("format_version", "4"), HasSubstr("use a newer oscar"));
  EXPECT_THAT(text("format_version", "2"), HasSubstr("collect the statistics again"));
  EXPECT_THAT(text("format_version", "0"), HasSubstr("format_version"));
  EXPECT_THAT(text("format_version", "one"), HasSubstr("format_version"));
  EXPECT_THAT(text("format_version", "99999999999999999999"), HasSubstr("format_version"));
  EXPECT_THAT(text("oscar", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(text("oscar", "[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(text("oscar", "{\"tokens\": 1, \"tokens\": 2}"), HasSubstr("twice"));
  EXPECT_THAT(text("oscar", (std::string(5000, '[') + std::string(5000, ']')).c_str()), HasSubstr("nested"));
}

TEST_F(HostileStatistics, Facts) {
  const auto change = [&](const std::function<void(Json&)>& fn) {
    return with_metadata([&](auto&, Json& j) { fn(j); });
  };
  EXPECT_THAT(change([](Json& j) { j["format_version"] = 4; }), HasSubstr("differ"));
  EXPECT_THAT(change([](Json& j) { j.erase("model"); }), HasSubstr("'model' is missing"));
  EXPECT_THAT(change([](Json& j) { j["model"] = 3; }), HasSubstr("'model' is number"));
  EXPECT_THAT(change([](Json& j) { j["model"]["layers"] = 3; }), HasSubstr("'layers.2.q_gram' is missing"));
  EXPECT_THAT(change([](Json& j) { j["model"]["layers"] = 1; }), HasSubstr("unexpected tensor 'layers.1"));
  EXPECT_THAT(change([](Json& j) { j["model"]["layers"] = std::int64_t{1} << 40; }), HasSubstr("'layers' is"));
  EXPECT_THAT(change([](Json& j) { j["model"]["layers"] = -1; }), HasSubstr("'layers' is -1"));
  const auto left_out = [&](const char* list) {
    return change([&](Json& j) {
      j["model"]["layers"] = 4;
      j["model"]["left_out"] = Json::parse(list);
    });
  };
  EXPECT_THAT(left_out(R"([{"layer": 1, "reason": ""}])"), HasSubstr("left out without a reason"));
  EXPECT_THAT(left_out(R"([{"layer": 1, "reason": "x"}, {"layer": 1, "reason": "x"}])"), HasSubstr("'layer' is 1"));
  EXPECT_THAT(left_out(R"([{"layer": 4, "reason": "x"}])"), HasSubstr("'layer' is 4"));
  EXPECT_THAT(left_out(R"([{"layer": 3, "reason": "x"}])"), HasSubstr("'layers.2.q_gram' is missing"));
  EXPECT_THAT(left_out(R"([{"layer": 0, "reason": "x"}, {"layer": 1, "reason": "x"}, {"layer": 2, "reason": "x"},
                           {"layer": 3, "reason": "x"}])"),
              HasSubstr("'left_out' has all 4 layers"));
  EXPECT_EQ(left_out(R"([{"layer": 2, "reason": "x"}, {"layer": 3, "reason": "x"}])"), "accepted");
  EXPECT_EQ(left_out(R"([{"layer": 2, "reason": "x"}, {"layer": 3, "reason": "x", "reads": 2}])"), "accepted");
  EXPECT_THAT(left_out(R"([{"layer": 2, "reason": "x"}, {"layer": 3, "reason": "x", "reads": 3}])"),
              HasSubstr("'reads' is 3"));
  EXPECT_THAT(change([](Json& j) { j["model"]["head_dim"] = 16; }), HasSubstr("expected [2, 16, 16]"));
  EXPECT_THAT(change([](Json& j) { j["model"]["head_dim"] = "8"; }), HasSubstr("expected an integer"));
  EXPECT_THAT(change([](Json& j) { j["model"]["kv_heads"] = 4; }), HasSubstr("expected [4, 8, 8]"));
  EXPECT_THAT(change([](Json& j) { j["model"]["query_heads"] = 5; }), HasSubstr("impossible geometry"));
  EXPECT_THAT(change([](Json& j) { j["tokens"] = 0; }), HasSubstr("'tokens' is 0"));
  EXPECT_THAT(change([](Json& j) { j["tokens"] = 3; }), HasSubstr("is not an energy over 3 tokens"));
  EXPECT_THAT(change([](Json& j) { j["parts"] = 3; }), HasSubstr("'parts'"));
  EXPECT_THAT(change([](Json& j) { j["parts"][0] = 3; }), HasSubstr("expected a JSON object"));
  EXPECT_THAT(change([](Json& j) { j["parts"][0]["prompts"]["sha256"] = 7; }), HasSubstr("'sha256'"));
  EXPECT_THAT(change([](Json& j) { j["rows"]["requested"] = "all"; }), HasSubstr("'requested'"));
  // What fit, tune, merge and show read later.
  EXPECT_THAT(change([](Json& j) { j["model"]["revision"] = 7; }), HasSubstr("'revision'"));
  EXPECT_THAT(change([](Json& j) { j["parts"][0]["options"] = "all"; }), HasSubstr("'options'"));
  EXPECT_THAT(change([](Json& j) { j["parts"][0]["tokens"] = "all"; }), HasSubstr("'tokens'"));
  for (const char* key : {"documents", "passages", "files"}) {
    EXPECT_THAT(change([&](Json& j) { j["parts"][0]["prompts"][key] = 7; }), HasSubstr(key));
    EXPECT_THAT(change([&](Json& j) { j["parts"][0]["prompts"][key] = {7}; }), HasSubstr(key));
    EXPECT_THAT(change([&](Json& j) { j["parts"][0]["prompts"][key] = {{"a", 1}}; }), HasSubstr(key));
  }
  EXPECT_EQ(change([](Json& j) { j["model"]["revision"] = nullptr; }), "accepted");
}

TEST_F(HostileStatistics, Tensors) {
  EXPECT_THAT(with_tensors([](auto& t) { std::erase_if(t, [](auto& v) { return v.name == "layers.1.k_sum"; }); }),
              HasSubstr("'layers.1.k_sum' is missing"));
  EXPECT_THAT(with_tensors([](auto& t) { t[0].name = "stranger"; }), HasSubstr("'"));
  EXPECT_THAT(with_tensors([](auto& t) { t.clear(); }), HasSubstr("is missing"));
  EXPECT_THAT(with_tensors([](auto& t) {
                for (TensorView& v : t) {
                  if (v.name == "layers.0.q_gram") v.dtype = DType::kI64;
                }
              }),
              HasSubstr("'layers.0.q_gram' is I64, expected F64"));
  EXPECT_THAT(with_tensors([](auto& t) { std::erase_if(t, [](auto& v) { return v.name == "rows.1.v"; }); }),
              HasSubstr("'rows.1.v' is missing"));
  EXPECT_THAT(with_tensors([](auto& t) { std::erase_if(t, [](auto& v) { return v.name == "rows.priority"; }); }),
              HasSubstr("'rows.position' does not hold"));
}

TEST_F(HostileStatistics, Values) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(with_values("layers.0.v_gram", [&](at::Tensor& t) { t[1][2][3] = nan; }),
              AllOf(HasSubstr("numerical: "), HasSubstr("'layers.0.v_gram' holds NaN")));
  EXPECT_THAT(with_values("rows.0.q", [&](at::Tensor& t) { t[1][2][3] = nan; }), HasSubstr("'rows.0.q' holds NaN"));
  EXPECT_THAT(with_values("layers.0.o_gram", [](at::Tensor& t) { t[1][2][3] += 1.0; }), HasSubstr("not symmetric"));
  EXPECT_THAT(with_values("layers.0.o_gram", [](at::Tensor& t) { t.neg_(); }), HasSubstr("negative diagonal"));
  EXPECT_THAT(with_values("layers.0.k_gram",
                          [](at::Tensor& t) {
                            t[0][1][2] = 1e6;
                            t[0][2][1] = 1e6;
                          }),
              HasSubstr("larger than its diagonal allows"));
  EXPECT_THAT(with_values("layers.1.k_sum", [](at::Tensor& t) { t.mul_(1000); }), HasSubstr("too large"));
  EXPECT_THAT(with_values("layers.1.k_sum",
                          [](at::Tensor& t) {
                            t = t.reshape({4, 4}).contiguous();
                          }),
              HasSubstr("has shape [4, 4], expected [2, 8]"));
  EXPECT_THAT(with_values("layers.1.residual_energy", [](at::Tensor& t) { t[1] = 1.0; }), HasSubstr("not an energy"));
  EXPECT_THAT(with_values("layers.1.attention_residual", [](at::Tensor& t) { t[1][1] = 1e9; }),
              HasSubstr("not an energy"));
  EXPECT_THAT(with_values("layers.1.pre_k_gram", [](at::Tensor& t) { t.mul_(1.1); }),
              HasSubstr("not of the same rows"));
  EXPECT_THAT(with_values("layers.1.pre_k_sum", [](at::Tensor& t) { t.mul_(1000); }), HasSubstr("too large"));
  EXPECT_THAT(with_values("rope_frequency", [](at::Tensor& t) { t[0] = -1.0; }), HasSubstr("negative frequency"));
  EXPECT_THAT(with_values("rope_frequency", [](at::Tensor& t) { t = at::zeros({5}, at::kDouble); }),
              HasSubstr("at most 4 frequencies"));
}

TEST_F(HostileStatistics, EveryTruncationIsRefused) {
  save_statistics(random_statistics({.layers = 1, .tokens = 10, .rows = 2}), path());
  const std::string good = read_file(path());
  for (std::size_t keep = 0; keep < good.size(); keep += 1 + good.size() / 97) {
    write(std::string_view(good).substr(0, keep));
    EXPECT_NE(refusal(), "accepted") << keep;
  }
}

TEST_F(HostileStatistics, FlippedBytesNeverCrash) {
  save_statistics(random_statistics({.layers = 1, .tokens = 10, .rows = 2}), path());
  const std::string good = read_file(path());
  for (std::size_t i = 0; i < 400; ++i) {
    std::string bad = good;
    bad[i * 7919 % good.size()] ^= static_cast<char>(1 << (i % 8));
    write(bad);
    try {
      load_statistics(path());  // a low bit of a number may change unnoticed
    } catch (const InputError&) {
    }
  }
}

TEST_F(HostileStatistics, SavingRefusesNonsenseToo) {
  Statistics s = random_statistics({});
  s.layers[0].q_gram[0][0][0] = std::numeric_limits<double>::infinity();
  EXPECT_THROW(save_statistics(s, path()), NumericalError);
  EXPECT_FALSE(fs::exists(path()));
}

}  // namespace
}  // namespace oscar
