#include "attention/cuda/device_transform.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <vector>

#include "attention/cuda/device_launch.h"
#include "codec/feedback.h"

namespace oscar {

namespace {

void add_metrics(const KvMethod& method, std::int64_t kv_heads, std::int64_t layer, Side which, at::Device device,
                 DeviceSide& side) {
  if ((which == Side::kKey ? method.key_encoder : method.value_encoder) != Encoder::kFeedback) return;
  std::vector<at::Tensor> matrices, offsets, flats;
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    const std::shared_ptr<const FeedbackMetric> metric = method.codec(layer, which, h).metric;
    const std::int64_t n = metric->channels(), d = method.code(layer, which).head_dim;
    // from_blob does not write through its pointer.
    const auto copy = [](const float* from, at::IntArrayRef sizes) {
      return at::from_blob(const_cast<float*>(from), sizes, at::kFloat).clone();
    };
    matrices.push_back(copy(metric->matrix(0), {d, n})), offsets.push_back(copy(metric->offset(0), {d}));
    std::vector<std::int32_t> flat;
    for (int block = 0; block < d / n; ++block) flat.push_back(metric->flat(block) ? 1 : 0);
    flats.push_back(at::tensor(flat).to(at::kByte));
  }
  side.metric = at::stack(matrices).to(device), side.metric_offset = at::stack(offsets).to(device);
  side.metric_flat = at::stack(flats).to(device);
}

}  // namespace

kernels::FeedbackMetrics DeviceSide::feedback() const {
  if (!metric.defined()) return {};
  return {metric.const_data_ptr<float>(), metric_offset.const_data_ptr<float>(),
          metric_flat.const_data_ptr<std::uint8_t>()};
}

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
  add_metrics(method, kv_heads, layer, which, device, s);
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
  switch (encoder) {
    case Encoder::kMinMax:
      return kernels::QuantizeEncoder::kMinMax;
    case Encoder::kSearch:
      return kernels::QuantizeEncoder::kSearch;
    case Encoder::kFeedback:
      return kernels::QuantizeEncoder::kFeedback;
  }
  throw std::logic_error("no such encoder");
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
