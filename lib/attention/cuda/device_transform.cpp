#include "attention/cuda/device_transform.h"

#include <ATen/ATen.h>

#include <vector>

namespace oscar {

DeviceSide device_side(const KvMethod& method, std::int64_t kv_heads, std::int64_t layer, Side which,
                       at::Device device) {
  DeviceSide s;
  std::vector<float> clip, sigma;
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    const RowCodec codec = method.codec(layer, which, h);
    clip.push_back(codec.clip);
    sigma.insert(sigma.end(), codec.sigma.begin(), codec.sigma.end());
  }
  s.clip = at::tensor(clip).to(device);
  s.sigma = at::tensor(sigma).to(device);
  const SideTransform* t = method.transform(layer, which);
  if (t == nullptr) return s;
  const auto place = [&](const at::Tensor& x) { return x.to(device, at::kFloat).contiguous(); };
  s.forward = place(t->forward);
  if (t->mean.defined()) s.mean = place(t->mean);
  s.rotated_mean = t->rotated_mean;
  if (!t->orthogonal()) {
    s.back = place(t->back(which));
  } else {
    s.back = which == Side::kKey ? s.forward : s.forward.transpose(1, 2).contiguous();
  }
  return s;
}

kernels::QuantizeEncoder kernel_encoder(Encoder encoder) {
  return encoder == Encoder::kMinMax ? kernels::QuantizeEncoder::kMinMax : kernels::QuantizeEncoder::kSearch;
}

at::Tensor restore_outputs_on_device(const at::Tensor& outputs, const DeviceSide& value) {
  if (!value.back.defined()) return outputs;
  const std::int64_t tokens = outputs.size(0), heads = outputs.size(1), d = outputs.size(2);
  const at::Tensor& back = value.back;
  at::Tensor o;
  if (back.size(0) == 1) {
    o = at::mm(outputs.view({tokens * heads, d}), back[0]).view({tokens, heads, d});
  } else {
    const std::int64_t kv_heads = back.size(0), group = heads / kv_heads;
    const at::Tensor by_head =
        outputs.view({tokens, kv_heads, group, d}).transpose(0, 1).reshape({kv_heads, tokens * group, d});
    o = at::bmm(by_head, back).view({kv_heads, tokens, group, d}).transpose(0, 1).reshape({tokens, heads, d});
  }
  return value.mean.defined() ? o + value.mean.repeat_interleave(heads / value.mean.size(0), 0) : o;
}

}  // namespace oscar
