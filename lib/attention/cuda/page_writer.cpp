#include "attention/cuda/page_writer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/cuda/device_launch.h"
#include "attention/cuda/device_transform.h"
#include "attention/cuda/repeated_upload.h"

namespace oscar {
namespace {

using kernels::PageRun;

// Pages of kernels/common/page_layout.h, in the basis of a transform.
class RowPageWriter : public PageWriter {
 public:
  RowPageWriter(const KvMethod& method, const SideSpec& spec, std::int64_t kv_heads, Side side, DevicePhases& phases,
                at::Device device)
      : method_(method),
        spec_(spec),
        kv_heads_(kv_heads),
        side_(side),
        phases_(phases),
        device_(device),
        runs_(device),
        new_runs_(device) {
    layers_.resize(spec.pages.size());
  }
  at::Tensor window_rows(std::int64_t layer, const at::Tensor& rows, const SequenceBatch& batch) override;
  void write(std::int64_t layer, const at::Tensor& rows, const std::vector<PageRun>& runs, const at::Tensor& pool,
             std::int32_t* bad) override;

 private:
  const DeviceSide& layer(std::int64_t index) {
    std::unique_ptr<DeviceSide>& l = layers_[static_cast<std::size_t>(index)];
    if (!l) l = std::make_unique<DeviceSide>(device_side(method_, kv_heads_, index, side_, device_));
    return *l;
  }
  kernels::QuantizePagesParams params(std::int64_t index, const at::Tensor& rows);

  const KvMethod& method_;
  const SideSpec& spec_;
  std::int64_t kv_heads_;
  Side side_;
  DevicePhases& phases_;
  at::Device device_;
  std::vector<std::unique_ptr<DeviceSide>> layers_;
  RepeatedUpload<PageRun> runs_, new_runs_;
};

kernels::QuantizePagesParams RowPageWriter::params(std::int64_t index, const at::Tensor& rows) {
  const DeviceSide& s = layer(index);
  const PageFormat format = spec_.pages[static_cast<std::size_t>(index)]->format();
  kernels::QuantizePagesParams p{};
  p.rows = rows.const_data_ptr();
  p.rows_bfloat16 = rows.scalar_type() == at::kBFloat16;
  p.clip = s.clip.const_data_ptr<float>(), p.sigma = s.sigma.const_data_ptr<float>();
  p.layout = format.rows, p.page_bytes = format.head_bytes;
  p.kv_heads = to_int32(kv_heads_), p.matrix_heads = 1;
  p.encoder = kernel_encoder(side_ == Side::kKey ? method_.key_encoder : method_.value_encoder);
  p.value_side = side_ == Side::kValue;
  p.feedback = s.feedback();
  return p;
}

at::Tensor RowPageWriter::window_rows(std::int64_t index, const at::Tensor& rows, const SequenceBatch& batch) {
  if (method_.transform(index, side_) == nullptr) return rows.to(at::kBFloat16);
  constexpr std::int64_t kRows = 64;
  std::vector<PageRun> runs;
  std::int64_t row = 0, longest = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); row += batch.lengths[s++]) {
    longest = std::max(longest, batch.starts[s] + batch.lengths[s]);
    for (std::int64_t i = 0; i < batch.lengths[s]; i += kRows) {
      const std::int64_t count = std::min(kRows, batch.lengths[s] - i);
      runs.push_back({to_int32(row + i), to_int32(count), 0, 0, to_int32(batch.starts[s] + i)});
    }
  }
  at::Tensor rotated = at::empty(rows.sizes(), rows.options().dtype(at::kBFloat16));
  const DeviceSide& s = layer(index);
  kernels::QuantizePagesParams p = params(index, rows);
  p.runs = new_runs_(runs), p.run_count = to_int32(std::ssize(runs));
  p.mean = pointer<float>(s.mean), p.matrix = pointer<float>(s.forward);
  if (s.forward.defined()) p.matrix_heads = to_int32(s.forward.size(0));
  if (s.rotated_mean) p.rope_phases = phases_.rows(longest);
  p.rotated = reinterpret_cast<std::uint16_t*>(rotated.data_ptr<at::BFloat16>());
  check_launch(kernels::quantize_pages(p, current_stream()), "quantize_pages");
  return rotated;
}

void RowPageWriter::write(std::int64_t index, const at::Tensor& rows, const std::vector<PageRun>& runs,
                          const at::Tensor& pool, std::int32_t* bad) {
  kernels::QuantizePagesParams p = params(index, rows);
  p.runs = runs_(runs), p.run_count = to_int32(std::ssize(runs));
  p.pages = pool.mutable_data_ptr<std::uint8_t>(), p.bad = bad;
  check_launch(kernels::quantize_pages(p, current_stream()), "quantize_pages");
}

}  // namespace

std::unique_ptr<PageWriter> make_page_writer(const KvMethod& method, const KvCacheSpec& spec, Side side,
                                             DevicePhases& phases, at::Device device) {
  const SideSpec& of = spec.sides[side == Side::kKey ? 0 : 1];
  return std::make_unique<RowPageWriter>(method, of, spec.kv_heads, side, phases, device);
}

}  // namespace oscar
