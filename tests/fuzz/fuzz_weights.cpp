// The tensors of a checkpoint as layers ask for them: one weight in each stored format, and experts.
#include <ATen/ATen.h>

#include <fstream>

#include "fuzz/fuzz_target.h"
#include "model/tiny_checkpoint.h"
#include "support/temp_directory.h"
#include "weights/weight_format.h"

namespace oscar::fuzz {
namespace {

constexpr std::int64_t kRows = 8, kColumns = 32, kExperts = 2;
constexpr const char *kWeight = "x.weight", *kOfExperts = "e";

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor bytes(at::IntArrayRef shape) { return at::full(shape, 0x35, at::kByte); }
at::Tensor words(at::IntArrayRef shape) { return at::full(shape, 0x12345678, at::kInt); }
at::Tensor float8(at::IntArrayRef shape) { return at::full(shape, 1.5).to(at::kFloat8_e4m3fn); }

std::vector<Tensors> checkpoints() {
  const std::int64_t packed = kColumns / 8;  // codes of 4 bits in words
  return {
      {{kWeight, at::ones({kRows, kColumns})}, {kOfExperts, at::ones({kExperts, kColumns, kRows})}},
      {{kWeight, float8({kRows, kColumns})}, {"x.weight_scale_inv", at::ones({1, 1})}},
      {{kWeight, float8({kRows, kColumns})}, {"x.weight_scale", at::ones({kRows, 1})}},
      {{kWeight, at::ones({kRows, kColumns}, at::kChar)}, {"x.weight_scale", at::ones({kRows})}},
      {{"x.weight_packed", bytes({kRows, kColumns / 2})}, {"x.weight_scale", bytes({kRows, 1})}},
      {{"e_blocks", bytes({kExperts, kRows, 1, 16})}, {"e_scales", bytes({kExperts, kRows, 1})}},
      {{"x.weight_packed", bytes({kRows, kColumns / 2})},
       {"x.weight_scale", float8({kRows, 2})},
       {"x.weight_global_scale", at::ones({1})}},
      {{kWeight, bytes({kRows, kColumns / 2})},
       {"x.weight_scale", float8({kRows, 2})},
       {"x.weight_scale_2", at::ones({})}},
      {{"x.weight_packed", words({kRows, packed})},
       {"x.weight_scale", at::ones({kRows, 2}, at::kBFloat16)},
       {"x.weight_zero_point", words({1, 2})},
       {"x.weight_g_idx", at::arange(kColumns, at::kInt).div(16, "floor")},
       {"x.weight_shape", at::tensor({kRows, kColumns})}},
      {{"x.qweight", words({kColumns, 1})}, {"x.qzeros", words({2, 1})}, {"x.scales", at::ones({2, kRows}, at::kHalf)}},
      {{"x.qweight", words({packed, kRows})},
       {"x.qzeros", words({2, 1})},
       {"x.scales", at::ones({2, kRows}, at::kHalf)},
       {"x.g_idx", at::arange(kColumns, at::kInt).div(16, "floor")}}};
}

// A directory with the config.json of the tiny checkpoint.
const fs::path& directory() {
  static const TempDirectory folder;
  static const fs::path path = [] {
    write_file_atomic(folder / "config.json", dump_json(TinyCheckpoint().config));
    return folder.path();
  }();
  return path;
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const Tensors& tensors : checkpoints()) {
    TinyCheckpoint stored;
    stored.tensors = tensors;
    stored.write(directory());
    files.push_back(read_file(directory() / "model.safetensors"));
  }
  return files;
}

void read_input(std::string_view bytes) {
  std::ofstream(directory() / "model.safetensors", std::ios::binary) << bytes;
  const Checkpoint checkpoint = Checkpoint::open({.directory = directory(), .name = "tiny", .revision = ""});
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> asked = {
      {kWeight, {kRows, kColumns}}, {kOfExperts, {kExperts, kColumns, kRows}}};
  for (const auto& [name, shape] : asked) {
    if (!stores_weight(checkpoint, name)) continue;
    const StoredWeight weight = find_weight(checkpoint, name, shape);
    require(weight.shape == shape && !weight.parts().empty(), "a weight has the shape that was asked for");
    const at::Tensor loaded = load_weight(weight, at::kBFloat16);
    require(loaded.sizes() == at::IntArrayRef(shape) && loaded.scalar_type() == at::kBFloat16, "and is loaded in it");
    if (weight.format == nullptr) continue;
    // What a kernel on a GPU would be told.
    const WeightLayout layout = weight.format->layout(weight);
    require(layout.rows * layout.columns == loaded.numel(), "a kernel writes the whole weight");
    require(layout.has_groups || (layout.columns - 1) / layout.block_columns < layout.column_groups,
            "and reads no scale behind the last one of a row");
    require(layout.block_rows > 0 &&
                (layout.rows - 1) / layout.block_rows * layout.column_groups < weight.scale->elements(),
            "nor of a row behind the last one");
  }
}

}  // namespace oscar::fuzz
