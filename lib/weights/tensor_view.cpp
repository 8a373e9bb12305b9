#include "weights/tensor_view.h"

#include <ATen/ATen.h>

#include <cstring>

#include "base/errors.h"
#include "base/files.h"
#include "distributed/byte_gather.h"
#include "distributed/file_upload.h"

namespace oscar {
namespace {

[[noreturn]] void refuse_type(const TensorView& view) {
  throw InputError("The tensor " + view.name + " has dtype " + view.type_text() +
                   ", which cannot be used here; expected BF16, F16, F32, F64 or an integer type.");
}

at::ScalarType scalar_type(const TensorView& view) {
  switch (view.dtype) {
    case DType::kBool:
      return at::kBool;
    case DType::kU8:
    case DType::kF8E8M0:  // as bytes: no arithmetic uses this type
      return at::kByte;
    case DType::kI8:
      return at::kChar;
    case DType::kI16:
      return at::kShort;
    case DType::kI32:
      return at::kInt;
    case DType::kI64:
      return at::kLong;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF32:
      return at::kFloat;
    case DType::kF64:
      return at::kDouble;
    case DType::kF8E4M3:
      return at::kFloat8_e4m3fn;
    default:
      refuse_type(view);
  }
}

}  // namespace

// safetensors guarantees no alignment, and the file may be unmapped later, so the bytes are copied first. Conversion
// happens on the target device, so the narrower stored type crosses the bus.
at::Tensor stored_tensor(const TensorView& view, at::Device device) {
  if (ByteGather* gather = current_gather();
      device.is_cuda() && gather != nullptr && view.data.size() >= kLeastGatherBytes) {
    return gather->upload(view.data).view(scalar_type(view)).view(view.shape);
  }
  at::Tensor stored = at::empty(view.shape, at::TensorOptions(scalar_type(view)).device(device));
  if (view.data.empty()) return stored;
  if (device.is_cuda()) {
    upload_file_bytes(view.data, stored.view({-1}).view(at::kByte));
  } else {
    read_mapped_by_threads(view.data, static_cast<std::byte*>(stored.mutable_data_ptr()));
  }
  return stored;
}

at::Tensor to_tensor(const TensorView& view, at::ScalarType dtype, at::Device device) {
  if (view.dtype == DType::kF8E4M3 || view.dtype == DType::kF8E8M0) refuse_type(view);  // meaningless without its scale
  return stored_tensor(view, device).to(dtype);
}

at::Tensor gather_rows(const TensorView& view, const std::vector<std::int32_t>& ids, at::ScalarType dtype,
                       at::Device device) {
  const std::int64_t columns = view.shape.at(1);
  const std::size_t row = static_cast<std::size_t>(columns) * dtype_size(view.dtype);
  at::Tensor stored =
      at::empty({static_cast<std::int64_t>(ids.size()), columns}, at::TensorOptions().dtype(scalar_type(view)));
  auto* out = static_cast<std::byte*>(stored.mutable_data_ptr());
  for (const std::int32_t id : ids) {
    std::memcpy(out, view.data.data() + static_cast<std::size_t>(id) * row, row);
    out += row;
  }
  return stored.to(device).to(dtype);
}

}  // namespace oscar
