// Kernels of kernels/weights against the dequantization on the CPU, bit for bit: every format, types of scales and
// results, sizes that no tile divides, groups in order and listed. And, without a GPU, that what is refused on the CPU
// is refused before a kernel runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/gpu.h"
#include "weights/weight_format.h"
#include "weights/weights_fixture.h"

namespace oscar {
namespace {

using Shape = std::vector<std::int64_t>;

at::Tensor bits_of(const at::Tensor& x) { return x.contiguous().view(x.element_size() == 4 ? at::kInt : at::kShort); }

void expect_equal(const WeightCase& stored, const Shape& shape, const std::string& name = "x.weight") {
  const TempDirectory directory;
  const Checkpoint checkpoint = stored.write(directory.path());
  const StoredWeight weight = find_weight(checkpoint, name, shape);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor expected = load_weight(weight, dtype), found = load_weight(weight, dtype, at::kCUDA).cpu();
    ASSERT_EQ(found.sizes(), expected.sizes());
    ASSERT_EQ(found.scalar_type(), dtype);
    const std::int64_t different = at::ne(bits_of(found), bits_of(expected)).sum().item<std::int64_t>();
    EXPECT_EQ(different, 0) << weight.format_name() << " " << weight_shape_text(shape) << " scale "
                            << weight.scale->shape_text() << " " << at::toString(dtype);
  }
}

// Any bytes but the two NaN of E4M3.
at::Tensor random_e4m3(const Shape& shape) {
  const at::Tensor codes = random_codes(shape, 254);
  return (codes + (codes >= 127).to(at::kLong)).to(at::kByte).view(at::kFloat8_e4m3fn);
}

at::Tensor random_words(const Shape& shape, std::uint64_t seed = 5) {
  return (random_codes(shape, std::int64_t{1} << 32, seed) - (std::int64_t{1} << 31)).to(at::kInt);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

TEST(DeviceWeight, Fp8InBlocks) {
  OSCAR_NEEDS_GPU();
  struct Form {
    Shape shape, block;
  };
  for (const Form& form : {Form{{200, 130}, {128, 128}}, Form{{256, 384}, {128, 128}}, Form{{64, 48}, {10, 10}},
                           Form{{1, 8}, {128, 128}}, Form{{300, 2064}, {128, 128}}, Form{{130, 4104}, {64, 40}}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      WeightCase stored;
      stored.tensors["x.weight"] = random_e4m3(form.shape);
      const Shape blocks = {ceil_div(form.shape[0], form.block[0]), ceil_div(form.shape[1], form.block[1])};
      stored.tensors["x.weight_scale_inv"] = random_scales(blocks).to(type);
      stored.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", form.block}};
      expect_equal(stored, form.shape);
    }
  }
}

TEST(DeviceWeight, EightBitsByRowAndTensor) {
  OSCAR_NEEDS_GPU();
  for (const Shape& shape : {Shape{200, 130}, Shape{129, 2048}, Shape{77}, Shape{5, 12, 40}, Shape{3, 7, 9}}) {
    for (const Shape& scale : {Shape{}, Shape{1}, Shape{shape[0]}, Shape{shape[0], 1}}) {
      WeightCase stored;
      stored.tensors["x.weight"] = random_e4m3(shape);
      stored.tensors["x.weight_scale"] = random_scales(scale);
      expect_equal(stored, shape);
      stored.tensors["x.weight"] = (random_codes(shape, 256) - 128).to(at::kChar);
      expect_equal(stored, shape);
    }
  }
}

TEST(DeviceWeight, Mxfp4) {
  OSCAR_NEEDS_GPU();
  for (const Shape& shape : {Shape{3, 96, 10}, Shape{5, 2880, 17}}) {
    const std::int64_t groups = shape[1] / 32;
    WeightCase stored;
    stored.tensors["m.experts.down_proj_blocks"] =
        random_codes({shape[0], shape[2], groups, 16}, 256).to(at::kByte).contiguous();
    stored.tensors["m.experts.down_proj_scales"] = random_codes({shape[0], shape[2], groups}, 255, 7).to(at::kByte);
    expect_equal(stored, shape, "m.experts.down_proj");
  }
  for (const Shape& shape : {Shape{33, 160}, Shape{1, 32}, Shape{70, 4128}}) {
    WeightCase stored;
    stored.tensors["x.weight_packed"] = random_codes({shape[0], shape[1] / 2}, 256).to(at::kByte);
    stored.tensors["x.weight_scale"] = random_codes({shape[0], shape[1] / 32}, 255, 7).to(at::kByte);
    expect_equal(stored, shape);
  }
}

TEST(DeviceWeight, Nvfp4) {
  OSCAR_NEEDS_GPU();
  for (const Shape& shape : {Shape{37, 48}, Shape{1, 16}, Shape{70, 4112}}) {
    for (const bool divided : {true, false}) {
      WeightCase stored;
      stored.tensors[divided ? "x.weight_packed" : "x.weight"] =
          random_codes({shape[0], shape[1] / 2}, 256).to(at::kByte);
      stored.tensors["x.weight_scale"] = random_e4m3({shape[0], shape[1] / 16});
      stored.tensors[divided ? "x.weight_global_scale" : "x.weight_scale_2"] =
          divided ? at::tensor({37.0f}) : at::scalar_tensor(0.37f);
      expect_equal(stored, shape);
    }
  }
}

TEST(DeviceWeight, PackedIntegers) {
  OSCAR_NEEDS_GPU();
  struct Form {
    std::int64_t rows, columns, groups;
  };
  for (const Form& form :
       {Form{200, 130, 1}, Form{37, 130, 13}, Form{9, 128, 4}, Form{70, 2056, 1}, Form{66, 4096, 32}, Form{5, 36, 3}}) {
    for (const std::int64_t bits : {4, 8}) {
      for (const int kind : {0, 1, 2}) {  // without zero points, with them, with listed groups
        WeightCase stored;
        stored.tensors["x.weight_packed"] = random_words({form.rows, ceil_div(form.columns * bits, 32)});
        stored.tensors["x.weight_shape"] = at::tensor({form.rows, form.columns});
        stored.tensors["x.weight_scale"] = random_scales({form.rows, form.groups}).to(at::kBFloat16);
        if (kind > 0) {
          stored.tensors["x.weight_zero_point"] = random_words({ceil_div(form.rows * bits, 32), form.groups}, 8);
        }
        if (kind == 2) stored.tensors["x.weight_g_idx"] = random_codes({form.columns}, form.groups).to(at::kInt);
        expect_equal(stored, {form.rows, form.columns});
      }
    }
  }
}

TEST(DeviceWeight, Awq) {
  OSCAR_NEEDS_GPU();
  struct Form {
    std::int64_t rows, columns, groups;
  };
  for (const Form& form : {Form{200, 130, 13}, Form{201, 130, 1}, Form{8, 64, 2}, Form{264, 512, 4}, Form{129, 65, 5},
                           Form{128, 136, 1}}) {
    WeightCase stored;
    const std::int64_t words = ceil_div(form.rows, 8);
    stored.tensors["x.qweight"] = random_words({form.columns, words});
    stored.tensors["x.qzeros"] = random_words({form.groups, words}, 8);
    stored.tensors["x.scales"] = random_scales({form.groups, form.rows}).to(at::kHalf);
    expect_equal(stored, {form.rows, form.columns});
  }
}

TEST(DeviceWeight, Gptq) {
  OSCAR_NEEDS_GPU();
  struct Form {
    std::int64_t rows, columns, groups;
  };
  for (const Form& form : {Form{200, 130, 13}, Form{201, 130, 1}, Form{8, 64, 2}, Form{264, 512, 4}, Form{129, 65, 5},
                           Form{128, 132, 3}}) {
    for (const std::int64_t bits : {4, 8}) {
      for (const bool listed : {false, true}) {
        for (const char* version : {"gptq", "gptq_v2"}) {
          WeightCase stored;
          stored.config["quantization_config"] = {{"quant_method", "gptq"}, {"checkpoint_format", version}};
          stored.tensors["x.qweight"] = random_words({ceil_div(form.columns * bits, 32), form.rows});
          stored.tensors["x.qzeros"] = random_words({form.groups, ceil_div(form.rows * bits, 32)}, 8);
          stored.tensors["x.scales"] = random_scales({form.groups, form.rows}).to(at::kHalf);
          if (listed) stored.tensors["x.g_idx"] = random_codes({form.columns}, form.groups).to(at::kInt);
          expect_equal(stored, {form.rows, form.columns});
        }
      }
    }
  }
}

TEST(DeviceWeight, BadNumbersAreRefusedBeforeAKernelRuns) {
  const auto expect_refused = [](const WeightCase& stored, const Shape& shape, const char* why) {
    const TempDirectory directory;
    const Checkpoint checkpoint = stored.write(directory.path());
    const StoredWeight weight = find_weight(checkpoint, "x.weight", shape);
    const std::string on_cpu = message_of<InputError>([&] { load_weight(weight, at::kFloat); });
    EXPECT_THAT(on_cpu, testing::HasSubstr(why));
    EXPECT_EQ(message_of<InputError>([&] { weight.format->layout(weight); }), on_cpu);
  };
  WeightCase stored;
  stored.tensors["x.weight"] = random_e4m3({2, 4});
  stored.tensors["x.weight_scale"] = at::tensor({1.0f, NAN});
  expect_refused(stored, {2, 4}, "NaN or infinite");
  stored.tensors.erase("x.weight");
  stored.tensors["x.weight_packed"] = random_words({2, 2});
  stored.tensors["x.weight_shape"] = at::tensor({2, 16});
  stored.tensors["x.weight_scale"] = random_scales({2, 2});
  stored.tensors["x.weight_g_idx"] = at::full({16}, 2, at::kInt);
  expect_refused(stored, {2, 16}, "not among the 2");
  stored.tensors.erase("x.weight_shape");
  stored.tensors.erase("x.weight_g_idx");
  stored.tensors["x.weight_packed"] = random_codes({2, 8}, 256).to(at::kByte);
  stored.tensors["x.weight_scale"] = random_e4m3({2, 1});
  stored.tensors["x.weight_global_scale"] = at::zeros({1});
  expect_refused(stored, {2, 16}, "is 0");
}

}  // namespace
}  // namespace oscar
