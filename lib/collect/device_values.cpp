#include "collect/device_values.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>
#include <vector>

#include "statistics/layer_fields.h"

namespace oscar {

LateNumber::LateNumber(const at::Tensor& number) : copy_(number) {
  if (!number.is_cuda()) return;
  copy_ = at::empty(number.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  copy_.copy_(number, /*non_blocking=*/true);
  copied_.emplace(number.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(number.device().type()).getStream(number.device()));
}

double LateNumber::value() const {
  if (copied_) copied_->synchronize();
  return copy_.item<double>();
}

namespace {

// Calls fn(tensor) for all defined tensors of a layer.
template <typename Fn>
void for_tensors(LayerMoments& layer, Fn fn) {
  const auto all = [&](const auto& fields) {
    for (const auto& field : fields) {
      if ((layer.*field.tensor).defined()) fn(layer.*field.tensor);
    }
  };
  all(kMomentFields), all(kFarPairFields), all(kEnergyFields), all(kRowFields);
}

constexpr std::int64_t kAlignment = 64;

}  // namespace

void LayerCopier::to_cpu(LayerMoments& layer) {
  std::int64_t bytes = 0;
  std::optional<at::Device> device;
  for_tensors(layer, [&](const at::Tensor& t) {
    if (t.is_cpu()) return;
    device = t.device();
    bytes += (static_cast<std::int64_t>(t.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
  });
  if (!device) return;
  if (!locked_.defined() || locked_.numel() < bytes) {
    locked_ = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  }
  std::vector<std::pair<at::Tensor*, at::Tensor>> copies;
  std::int64_t offset = 0;
  for_tensors(layer, [&](at::Tensor& t) {
    if (t.is_cpu()) return;
    const auto size = static_cast<std::int64_t>(t.nbytes());
    const at::Tensor to = locked_.narrow(0, offset, size).view(t.scalar_type()).view(t.sizes());
    to.copy_(t, /*non_blocking=*/true);
    copies.emplace_back(&t, to);
    offset += (size + kAlignment - 1) / kAlignment * kAlignment;
  });
  const c10::impl::VirtualGuardImpl guard(device->type());
  guard.synchronizeStream(guard.getStream(*device));
  for (const auto& [tensor, copy] : copies) *tensor = copy.clone();
}

}  // namespace oscar
