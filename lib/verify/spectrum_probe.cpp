#include "verify/spectrum_probe.h"

#include <ATen/ATen.h>

#include "attention/begin_step.h"
#include "base/json.h"
#include "statistics/parallel_tasks.h"
#include "verify/forward.h"

namespace oscar {
namespace {

// rows: [T, H, d] -> [d] variances over tokens, sorted for each head, mean over heads.
std::vector<double> spectrum_of(const at::Tensor& rows) {
  const at::Tensor variance = rows.to(at::kCPU, at::kDouble).var(at::IntArrayRef{0}, /*unbiased=*/false);  // [H, d]
  const at::Tensor sorted = std::get<0>(variance.sort(1, /*descending=*/true)).mean(0).contiguous();
  return {sorted.const_data_ptr<double>(), sorted.const_data_ptr<double>() + sorted.numel()};
}

// Rows of one side of a layer as the model makes them, [T, H, d] on the CPU.
struct SideRows {
  std::int64_t layer;  // that attention counts
  Side side;
  at::Tensor rows;
};

class RowKeeper : public AttentionObserver {
 public:
  using AttentionObserver::AttentionObserver;
  std::vector<SideRows> kept;

 protected:
  void observe(const AttentionInput& input, const at::Tensor&) override {
    kept.push_back({input.layer, Side::kKey, input.k.to(at::kCPU)});
    kept.push_back({input.layer, Side::kValue, input.v.to(at::kCPU)});
  }
};

LayerSpectrum spectrum_of(const SideRows& from, const ModelConfig& model, const KvMethod& method) {
  const SideTransform* transform = method.transform(from.layer, from.side);
  at::Tensor rope_phases;
  if (transform != nullptr && transform->rotated_mean) rope_phases = method.rope_phases->rows(0, from.rows.size(0));
  const at::Tensor cached = transformed_rows(from.rows, transform, rope_phases);
  return {model.kv_layer(from.layer), from.side == Side::kKey ? "key" : "value", spectrum_of(from.rows),
          spectrum_of(cached)};
}

}  // namespace

// The work is on the CPU, in steps too small for all threads: each layer and side has one.
std::vector<LayerSpectrum> measure_spectra(Decoder& decoder, const KvMethod& baseline, const KvMethod& method,
                                           const std::vector<std::int32_t>& ids) {
  SimulatedPrefillAttention exact(baseline);
  RowKeeper keeper(exact);
  prefill_hidden(decoder, ids, {&keeper});
  std::vector<LayerSpectrum> spectra(keeper.kept.size());
  parallel_tasks(std::ssize(spectra), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    spectra[at] = spectrum_of(keeper.kept[at], decoder.config(), method);
  });
  return spectra;
}

std::vector<LayerSpectrum> by_last_rank(Ranks* ranks, const std::function<std::vector<LayerSpectrum>()>& measure) {
  if (ranks == nullptr) return measure();
  Json own = Json::array();
  if (ranks->rank() == ranks->count() - 1) {
    for (const LayerSpectrum& s : measure()) own.push_back({s.layer, s.side, s.before, s.after});
  }
  const std::vector<std::string> all = ranks->all_gather(own.dump());
  std::vector<LayerSpectrum> spectra;
  for (const Json& s : parse_json(all.back(), "the last rank")) spectra.push_back({s[0], s[1], s[2], s[3]});
  return spectra;
}

}  // namespace oscar
