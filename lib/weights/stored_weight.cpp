#include "weights/stored_weight.h"

#include <ATen/ATen.h>

#include <array>

#include "base/errors.h"
#include "weights/tensor_view.h"
#include "weights/weight_format.h"

namespace oscar {

extern const WeightFormat kFp8, kMxfp4, kPackedIntegers, kNvfp4, kAwq, kGptq;

namespace {

constexpr std::array kFormats = {&kFp8, &kMxfp4, &kPackedIntegers, &kNvfp4, &kAwq, &kGptq};

// Tensors that only quantized weights have, for the module and for the weight itself.
constexpr std::array kModuleParts = {".weight_packed",  ".qweight",      ".weight_scale",        ".weight_scale_inv",
                                     ".weight_scale_2", ".weight_shape", ".weight_global_scale", ".weight_zero_point",
                                     ".qzeros",         ".scales",       ".weight.absmax",       ".absmax"};
constexpr std::array kWeightParts = {"_blocks", "_scales"};

const TensorView* any_part(const WeightQuery& query) {
  for (const char* suffix : kModuleParts) {
    if (const TensorView* part = query.find(suffix); part != nullptr) return part;
  }
  for (const char* suffix : kWeightParts) {
    if (const TensorView* part = query.checkpoint.find(query.name + suffix); part != nullptr) return part;
  }
  return nullptr;
}

bool is_plain(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

StoredWeight plain_weight(const WeightQuery& query) {
  const std::string directory = query.checkpoint.location().directory.string();
  const TensorView* view = query.checkpoint.find(query.name);
  if (const TensorView* part = any_part(query); part != nullptr) {
    throw InputError("The checkpoint " + directory + " holds " + part->name + ", but " + query.name + " is " +
                     (view == nullptr ? "missing" : view->type_text()) +
                     ", and together they are no quantized weight that is read; docs/families.md lists the formats.");
  }
  if (view == nullptr) {
    throw InputError("The tensor " + query.name + " is missing from " + directory + "; " +
                     query.checkpoint.config().architecture + " needs it with shape " + weight_shape_text(query.shape) +
                     ".");
  }
  if (view->shape != query.shape) {
    throw InputError("The tensor " + query.name + " of " + directory + " has shape " + view->shape_text() +
                     ", but config.json implies " + weight_shape_text(query.shape) + ".");
  }
  if (!is_plain(view->dtype)) {
    throw InputError(
        "The tensor " + query.name + " of " + directory + " has dtype " + view->type_text() +
        ", but weights must be BF16, F16, F32 or F64, or quantized in a format that docs/families.md lists.");
  }
  return {.name = query.name, .shape = query.shape, .codes = view, .where = directory};
}

}  // namespace

std::vector<const TensorView*> StoredWeight::parts() const {
  std::vector<const TensorView*> all;
  for (const TensorView* part : {codes, scale, second, groups, shape_info, input_factors}) {
    if (part != nullptr) all.push_back(part);
  }
  return all;
}

const char* StoredWeight::format_name() const { return format == nullptr ? dtype_name(codes->dtype) : format->name; }

bool has_quantized_parts(const Checkpoint& checkpoint, const std::string& name) {
  const WeightShape unknown;
  return any_part({checkpoint, name, unknown}) != nullptr;
}

bool stores_weight(const Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.find(name) != nullptr || has_quantized_parts(checkpoint, name);
}

namespace {

StoredWeight find_codes(const WeightQuery& query) {
  const Checkpoint& checkpoint = query.checkpoint;
  const std::string& name = query.name;
  for (const WeightFormat* format : kFormats) {
    const std::optional<StoredWeight> found = format->find(query);
    if (!found) continue;
    if (found->codes->name != name && checkpoint.find(name) != nullptr) {
      throw InputError("The checkpoint " + found->where + " holds the weight " + name + " twice, plain and as " +
                       found->codes->name + "; remove one of them.");
    }
    return *found;
  }
  return plain_weight(query);
}

at::Tensor load_codes(const StoredWeight& weight, at::ScalarType dtype, at::Device device) {
  if (weight.format == nullptr) return to_tensor(*weight.codes, dtype, device);
  if (!device.is_cuda()) return weight.format->dequantize(weight, dtype);
  const at::Tensor matrix = dequantize_on_device(weight, weight.format->layout(weight), dtype, device);
  if (!weight.turned) return matrix.view(weight.shape);
  return matrix.view({weight.shape[0], weight.shape[2], weight.shape[1]}).transpose(1, 2);
}

}  // namespace

StoredWeight find_weight(const Checkpoint& checkpoint, const std::string& name, const WeightShape& shape) {
  const WeightQuery query{checkpoint, name, shape};
  StoredWeight weight = find_codes(query);
  // modelopt's AWQ divides the weight's columns by factors and multiplies the layer's input by them.
  const TensorView* factors = shape.size() == 2 ? query.find(".pre_quant_scale") : nullptr;
  if (factors == nullptr) return weight;
  require_type(query, *factors, {DType::kF32, DType::kBF16, DType::kF16});
  if (factors->shape != WeightShape{1, shape[1]}) require_shape(query, *factors, {shape[1]});
  weight.input_factors = factors;
  return weight;
}

at::Tensor load_weight(const StoredWeight& weight, at::ScalarType dtype, at::Device device) {
  if (weight.input_factors == nullptr) return load_codes(weight, dtype, device);
  const at::Tensor factors = finite_scale(weight, *weight.input_factors).view({-1}).to(device);
  return load_codes(weight, at::kFloat, device).mul_(factors).to(dtype);
}

}  // namespace oscar
