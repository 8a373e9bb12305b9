#include "base/errors.h"
#include "base/files.h"
#include "torch_file/torch_pt_nodes.h"

namespace oscar::pt {
namespace {

constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{4} << 30;

}  // namespace

PtTensor tensor_over(const Storage& storage, std::int64_t offset, std::vector<std::int64_t> shape,
                     std::vector<std::int64_t> strides, const std::shared_ptr<const void>& owner,
                     const std::string& where) {
  const auto refuse = [&](const std::string& what) { throw InputError(where + ": " + what); };
  PtTensor t{storage.dtype, std::move(shape), std::move(strides), {}, owner};
  if (t.strides.size() != t.shape.size()) refuse("a tensor has strides of another length than its size");
  const std::uint64_t item = dtype_size(t.dtype), have = storage.bytes.size() / item;
  unsigned __int128 count = 1, last = 0;  // number of elements; index of the last one relative to the offset
  bool empty = false;
  for (std::size_t i = 0; i < t.shape.size(); ++i) {
    if (t.shape[i] < 0 || t.strides[i] < 0) refuse("a tensor has a negative number in its size or stride");
    empty = empty || t.shape[i] == 0;
  }
  for (std::size_t i = 0; i < t.shape.size() && !empty; ++i) {
    const auto extent = static_cast<std::uint64_t>(t.shape[i]);
    count *= extent;
    if (count * item > kMaxTensorBytes) {
      refuse("a tensor of shape " + t.shape_text() + " is larger than " + format_bytes(kMaxTensorBytes));
    }
    last += static_cast<unsigned __int128>(extent - 1) * static_cast<std::uint64_t>(t.strides[i]);
  }
  const bool outside = offset < 0 || static_cast<std::uint64_t>(offset) > have ||
                       (!empty && last + static_cast<std::uint64_t>(offset) >= have);
  if (outside) {
    refuse("a tensor of shape " + t.shape_text() + " at offset " + std::to_string(offset) +
           " reaches outside its storage of " + std::to_string(have) + " elements");
  }
  t.data = storage.bytes.subspan(static_cast<std::uint64_t>(offset) * item);
  return t;
}

}  // namespace oscar::pt
