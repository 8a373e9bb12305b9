#include "checkpoint/weight_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

constexpr std::array<std::string_view, 9> kMethods = {"fp8", "mxfp8", "compressed-tensors", "modelopt",  "mxfp4",
                                                      "awq", "gptq",  "auto-round",         "fbgemm_fp8"};
constexpr std::int64_t kMaxBlock = std::int64_t{1} << 20;

using Block = std::pair<std::int64_t, std::int64_t>;

std::string method_names() {
  std::string text;
  for (const std::string_view method : kMethods) text += (text.empty() ? "" : ", ") + std::string(method);
  return text;
}

std::optional<Block> read_block(const Json& object, const char* key, const std::string& where) {
  const Json& value = json_member(object, key);
  if (value.is_null()) return std::nullopt;
  const auto size = [&](std::size_t i) -> std::int64_t {
    if (!value.is_array() || value.size() != 2 || !value[i].is_number_integer()) return 0;
    return value[i].get<std::int64_t>();
  };
  const Block block = {size(0), size(1)};
  if (block.first < 1 || block.first > kMaxBlock || block.second < 1 || block.second > kMaxBlock) {
    throw InputError(where + ": '" + key + "' of 'quantization_config' must be two whole numbers of 1 to " +
                     std::to_string(kMaxBlock) + ", the rows and columns of a block");
  }
  return block;
}

// Groups may have any key and describe any modules. Their sizes must agree, because tensors do not name their group.
std::optional<Block> block_of_groups(const Json& quantization, const std::string& where) {
  const Json& groups = json_member(quantization, "config_groups");
  if (groups.is_null()) return std::nullopt;
  if (!groups.is_object()) throw InputError(where + ": 'config_groups' of 'quantization_config' must be an object");
  std::optional<Block> block;
  for (const auto& [key, group] : groups.items()) {
    const Json& weights = json_member(group, "weights");
    if (!weights.is_object()) continue;
    const std::optional<Block> own = read_block(weights, "block_structure", where);
    if (own && block && *own != *block) {
      throw InputError(where +
                       ": groups of 'quantization_config' have blocks of different sizes ('block_structure'), " +
                       "which is not supported");
    }
    if (own) block = own;
  }
  return block;
}

void check_method(const Json& quantization, const std::string& method, const std::string& where) {
  if (std::find(kMethods.begin(), kMethods.end(), method) == kMethods.end()) {
    throw InputError(where + ": the weights are quantized by the method " + quote_name(method) +
                     " ('quant_method'), which is not read; those that are read: " + method_names() +
                     ", or use the BF16, F16 or F32 checkpoint of the model");
  }
  const std::string version = method == "awq" ? json_string(quantization, "version", where, "gemm") : "gemm";
  if (version.starts_with("gemv") || version.starts_with("GEMV")) {
    throw InputError(where + ": AWQ weights of the version " + quote_name(version) +
                     " lie in another order than those of the version gemm, which are read; use a checkpoint of that");
  }
  if (!json_member(quantization, "transform_config").empty()) {
    throw InputError(where +
                     ": the weights were quantized after a transform ('transform_config'), which also changes " +
                     "activations and is not supported; use the BF16, F16 or F32 checkpoint of the model");
  }
}

// The offset of stored zero points in GPTQ's layout. auto-round names it by the packing. Its AWQ layout has no offset,
// and its llm_compressor layout equals compressed-tensors.
std::int64_t zero_point_offset(const Json& quantization, const std::string& method, const std::string& where) {
  if (method == "auto-round") {
    const std::string packing = json_string(quantization, "packing_format", where, "auto_round:auto_gptq");
    if (packing == "auto_round" || packing == "auto_round:gptqmodel") return 0;
    for (const char* known : {"auto_round:auto_gptq", "auto_round:gptq", "auto_round:auto_awq", "auto_round:awq",
                              "auto_round:llm_compressor"}) {
      if (packing == known) return 1;
    }
    throw InputError(where + ": 'packing_format' of 'quantization_config' is " + quote_name(packing) +
                     ", which is not read; those that are: auto_round, auto_round:gptqmodel, auto_round:auto_gptq "
                     "(also auto_round:gptq), auto_round:auto_awq (also auto_round:awq), auto_round:llm_compressor");
  }
  return method == "gptq" && json_string(quantization, "checkpoint_format", where, "") == "gptq_v2" ? 0 : 1;
}

}  // namespace

WeightConfig parse_weight_config(const Json& config, const std::string& where) {
  WeightConfig out;
  const Json& quantization = json_member(config, "quantization_config");
  if (quantization.is_null()) return out;
  if (!quantization.is_object()) {
    throw InputError(where + ": 'quantization_config' is " + quantization.type_name() + ", expected an object");
  }
  out.method = json_string(quantization, "quant_method", where + ", 'quantization_config'");
  check_method(quantization, out.method, where);
  std::optional<Block> block = read_block(quantization, "weight_block_size", where);
  if (!block) block = block_of_groups(quantization, where);
  if (block) std::tie(out.block_rows, out.block_columns) = *block;
  out.zero_point_offset = zero_point_offset(quantization, out.method, where);
  out.act_order = out.method == "gptq" && json_bool(quantization, "desc_act", where, false);
  return out;
}

}  // namespace oscar
