#include "verify/spectrum_probe.h"

#include <ATen/ATen.h>

#include "attention/begin_step.h"
#include "verify/forward.h"

namespace oscar {
namespace {

// rows: [T, H, d] -> [d] variances over tokens, sorted for each head, mean over heads.
std::vector<double> spectrum_of(const at::Tensor& rows) {
  const at::Tensor variance = rows.to(at::kCPU, at::kDouble).var(at::IntArrayRef{0}, /*unbiased=*/false);  // [H, d]
  const at::Tensor sorted = std::get<0>(variance.sort(1, /*descending=*/true)).mean(0).contiguous();
  return {sorted.const_data_ptr<double>(), sorted.const_data_ptr<double>() + sorted.numel()};
}

class SpectrumObserver : public AttentionObserver {
 public:
  SpectrumObserver(Attention& inner, const ModelConfig& model, const KvMethod& method,
                   std::vector<LayerSpectrum>& spectra)
      : AttentionObserver(inner), model_(model), method_(method), spectra_(spectra) {}

 protected:
  void observe(const AttentionInput& input, const at::Tensor&) override {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const at::Tensor& rows = side == Side::kKey ? input.k : input.v;
      const SideTransform* transform = method_.transform(input.layer, side);
      at::Tensor rope_phases;
      if (transform != nullptr && transform->rotated_mean) rope_phases = method_.rope_phases->rows(0, rows.size(0));
      const at::Tensor cached = transformed_rows(rows, transform, rope_phases);
      spectra_.push_back(
          {model_.kv_layer(input.layer), side == Side::kKey ? "key" : "value", spectrum_of(rows), spectrum_of(cached)});
    }
  }

 private:
  const ModelConfig& model_;
  const KvMethod& method_;
  std::vector<LayerSpectrum>& spectra_;
};

}  // namespace

std::vector<LayerSpectrum> measure_spectra(Decoder& decoder, const KvMethod& baseline, const KvMethod& method,
                                           const std::vector<std::int32_t>& ids) {
  std::vector<LayerSpectrum> spectra;
  SimulatedPrefillAttention exact(baseline);
  SpectrumObserver observer(exact, decoder.config(), method, spectra);
  prefill_hidden(decoder, ids, {&observer});
  return spectra;
}

}  // namespace oscar
