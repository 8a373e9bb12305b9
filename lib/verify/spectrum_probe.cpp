#include "verify/spectrum_probe.h"

#include <ATen/ATen.h>

#include "attention/begin_step.h"
#include "base/json.h"
#include "base/parallel_tasks.h"
#include "verify/forward.h"

namespace oscar {
namespace {

// rows: [T, H, d] -> [d] variances over tokens, sorted per head, mean over heads.
std::vector<double> spectrum_of(const at::Tensor& rows) {
  const at::Tensor variance = rows.to(at::kCPU, at::kDouble).var(at::IntArrayRef{0}, /*unbiased=*/false);  // [H, d]
  const at::Tensor sorted = std::get<0>(variance.sort(1, /*descending=*/true)).mean(0).contiguous();
  return {sorted.const_data_ptr<double>(), sorted.const_data_ptr<double>() + sorted.numel()};
}

// Rows of one side of a layer from the model, [T, H, d] on the CPU.
struct SideRows {
  std::int64_t layer;  // index used by attention
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

std::vector<std::int32_t> top_tokens(const Decoder& decoder, const at::Tensor& hidden, std::int64_t shown) {
  const at::Tensor last = hidden.narrow(0, hidden.size(0) - shown, shown);
  const at::Tensor top = decoder.logits(last).argmax(1).to(at::kCPU, at::kInt).contiguous();
  return {top.const_data_ptr<std::int32_t>(), top.const_data_ptr<std::int32_t>() + top.numel()};
}

}  // namespace

// Spectra are CPU work in steps too small for all threads, so each layer and side gets one thread.
EvaluatedProbe probe_evaluated(Decoder& decoder, const KvMethod& baseline, const KvMethod& method,
                               const std::vector<std::int32_t>& ids, std::int64_t shown) {
  SimulatedPrefillAttention exact(baseline), coded(method);
  RowKeeper keeper(exact);
  std::vector<Attention*> runs = {&keeper};
  if (shown > 0) runs.push_back(&coded);
  const std::vector<at::Tensor> hidden = prefill_hidden(decoder, ids, runs);
  EvaluatedProbe probe;
  probe.spectra.resize(keeper.kept.size());
  parallel_tasks(std::ssize(probe.spectra), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    probe.spectra[at] = spectrum_of(keeper.kept[at], decoder.config(), method);
  });
  if (shown > 0) {
    probe.baseline_top = top_tokens(decoder, hidden[0], shown);
    probe.coded_top = top_tokens(decoder, hidden[1], shown);
  }
  return probe;
}

EvaluatedProbe by_last_rank(Ranks* ranks, const std::function<EvaluatedProbe()>& measure) {
  if (ranks == nullptr) return measure();
  Json own;
  if (ranks->rank() == ranks->count() - 1) {
    const EvaluatedProbe probe = measure();
    Json spectra = Json::array();
    for (const LayerSpectrum& s : probe.spectra) spectra.push_back({s.layer, s.side, s.before, s.after});
    own = {{"spectra", std::move(spectra)}, {"baseline", probe.baseline_top}, {"coded", probe.coded_top}};
  }
  const std::vector<std::string> all = ranks->all_gather(own.dump());
  const Json found = parse_json(all.back(), "the last rank");
  EvaluatedProbe probe;
  for (const Json& s : found["spectra"]) probe.spectra.push_back({s[0], s[1], s[2], s[3]});
  probe.baseline_top = found["baseline"].get<std::vector<std::int32_t>>();
  probe.coded_top = found["coded"].get<std::vector<std::int32_t>>();
  return probe;
}

}  // namespace oscar
