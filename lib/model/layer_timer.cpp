#include "model/layer_timer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/clock.h"
#include "model/device.h"

namespace oscar {
namespace {

DecoderOptions streamed(DecoderOptions options) {
  options.stream_layers = true;
  options.prefetch = false;
  return options;
}

// Query-key pairs of a sequence: all before a query and itself, or those within `span` tokens (0: no window).
double attention_pairs(std::int64_t tokens, std::int64_t span) {
  const double t = static_cast<double>(tokens), w = static_cast<double>(span);
  if (span == 0 || tokens <= span) return 0.5 * t * (t + 1.0);
  return 0.5 * w * (w + 1.0) + (t - w) * w;
}

// Through both samples; what noise makes negative is zero.
LayerTimer::Rate rate_through(std::int64_t few, double short_seconds, std::int64_t many, double long_seconds,
                              std::int64_t span) {
  const double t1 = static_cast<double>(few), t2 = static_cast<double>(many);
  const double p1 = attention_pairs(few, span), p2 = attention_pairs(many, span);
  LayerTimer::Rate rate;
  if (many > few && p2 * t1 > p1 * t2) {
    rate.pair = std::max(0.0, (long_seconds * t1 - short_seconds * t2) / (p2 * t1 - p1 * t2));
  }
  rate.pair = std::min(rate.pair, long_seconds / p2);
  rate.token = (long_seconds - rate.pair * p2) / t2;
  return rate;
}

}  // namespace

LayerTimer::LayerTimer(const Checkpoint& checkpoint, const DecoderOptions& options, std::int64_t tokens)
    : tokens_(tokens), decoder_(checkpoint, streamed(options)) {
  const ModelConfig& c = decoder_.config();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    kinds_.push_back({c.span(layer), c.holds_kv(layer), c.is_linear(layer)});
  }
}

std::int64_t LayerTimer::usual_tokens(const ModelConfig& c, at::Device device) {
  if (!device.is_cpu()) return 4096;
  constexpr std::int64_t kMostProducts = std::int64_t{1} << 35;
  const std::int64_t weights = c.hidden * (2 * (c.query_heads + c.kv_heads) * c.head_dim + 3 * c.intermediate);
  return std::clamp<std::int64_t>(kMostProducts / std::max<std::int64_t>(weights, 1), 128, 1024);
}

std::vector<std::int32_t> LayerTimer::ids(std::int64_t count) const {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(static_cast<std::int32_t>(i * 7919 % decoder_.config().vocabulary));
  }
  return out;
}

std::vector<LayerTimer::Rates> LayerTimer::rates(
    const std::function<std::vector<double>(std::int64_t layer, std::int64_t tokens)>& seconds) {
  std::vector<Rates> out;
  const std::int64_t shorter = std::max<std::int64_t>(1, tokens_ / 4);
  for (std::size_t layer = 0; layer < kinds_.size(); ++layer) {
    const Kind& kind = kinds_[layer];
    if (!out.empty() && out.front().contains(kind)) continue;
    const auto number = static_cast<std::int64_t>(layer);
    const std::vector<double> few = seconds(number, shorter), many = seconds(number, tokens_);
    out.resize(many.size());
    for (std::size_t part = 0; part < many.size(); ++part) {
      out[part][kind] = rate_through(shorter, few[part], tokens_, many[part], kind.span);
    }
  }
  return out;
}

double LayerTimer::all_layers(const Rates& rates, std::int64_t tokens) const {
  double total = 0.0;
  for (const Kind& kind : kinds_) {
    const Rate& rate = rates.at(kind);
    total += rate.token * static_cast<double>(tokens) + rate.pair * attention_pairs(tokens, kind.span);
  }
  return total;
}

double LayerTimer::all_layers(const std::function<double(std::int64_t layer)>& seconds) const {
  std::map<Kind, double> known;
  double total = 0.0;
  for (std::size_t layer = 0; layer < kinds_.size(); ++layer) {
    const Kind& kind = kinds_[layer];
    if (!known.contains(kind)) known[kind] = seconds(static_cast<std::int64_t>(layer));
    total += known[kind];
  }
  return total;
}

double LayerTimer::loading(double computing) {
  const std::int64_t layers = decoder_.config().layers;
  if (layer_load_ < 0.0) {
    FullAttention attention;
    const at::Tensor hidden = decoder_.embed(ids(1));
    const auto token = [&](std::int64_t layer) {
      wait_for(decoder_.run_layer(layer, hidden, {{0}, {1}, {0}}, attention));
    };
    token(0);
    // The last layer is not the one in memory, unless it is the only one.
    const double last = seconds_of([&] { token(layers - 1); });
    layer_load_ = std::max(0.0, last - seconds_of([&] { token(layers - 1); }));
  }
  const double all = layer_load_ * static_cast<double>(layers);
  return decoder_.options().device.is_cpu() ? all : std::max(0.0, all - computing);
}

}  // namespace oscar
