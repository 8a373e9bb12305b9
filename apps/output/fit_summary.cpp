#include "apps/output/fit_output.h"

#include <algorithm>
#include <vector>

#include "base/columns.h"
#include "base/files.h"
#include "base/formatted.h"
#include "bundle/model_card.h"
#include "transform/profile_allocation.h"

namespace oscar {
namespace {

constexpr std::size_t kShown = 3;  // layers and sides

// Numbers that a token caches in the layers of the bundle.
double elements_of(const Bundle& bundle) {
  double elements = 0.0;
  for (const LayerTransform& layer : bundle.layers) {
    elements += static_cast<double>((bundle.latent() ? 1 : 2) * layer.kv_heads * layer.head_dim + bundle.rope_dim());
  }
  return elements;
}

double cache_bits(const Bundle& bundle, std::int64_t context) {
  const double bits = bits_with_windows(bundle_bits_per_element(bundle), bundle.windows, context);
  return bits_with_beside(bits, bundle.layers.front().head_dim, bundle.rope_dim());  // beside one KV head
}

// Covers the layers in the bundle; layers left out do not change.
std::string memory_line(const Bundle& bundle) {
  std::string text = "memory    ";
  for (const std::int64_t context : {2048, 8192, 32768, 131072}) {
    text += std::to_string(context / 1024) + "K " + formatted("%.1fx", 16.0 / cache_bits(bundle, context)) +
            (context < 131072 ? ", " : "");
  }
  return text + " smaller than BF16, windows of " + std::to_string(bundle.windows.sink) + "/" +
         std::to_string(bundle.windows.recent) + " included\n";
}

// "cache     8K 5.6 MiB, ... a sequence; BF16 32.0 MiB, ...": of the layers in the bundle.
std::string cache_line(const Bundle& bundle) {
  const double elements = elements_of(bundle);
  std::string coded, plain;
  for (const std::int64_t context : {8192, 32768, 131072}) {
    const auto bytes = [&](double bits) {
      return format_bytes(static_cast<std::uint64_t>(elements * static_cast<double>(context) * bits / 8.0));
    };
    const std::string comma = coded.empty() ? "" : ", ";
    coded += comma + std::to_string(context / 1024) + "K " + bytes(cache_bits(bundle, context));
    plain += comma + bytes(16.0);
  }
  return "cache     " + coded + " a sequence; BF16 " + plain + "\n";
}

struct SideDamage {
  std::int64_t layer = 0;
  bool key = false;
  double value = 0.0;
  const SideTransform* side = nullptr;
};

// "4-2-1-0", or "2 bits" of a side without blocks.
std::string widths_of(const SideTransform& side) {
  return side.blocks() ? widths_text(side.widths, side.refined) : "2 bits";
}

std::string worst_line(const FitResult& result) {
  const bool shares = !result.layers.front().key_spectrum.lambda.empty();
  if (!shares && result.held_out_rows == 0) return "";
  std::vector<SideDamage> sides;
  for (const LayerFit& layer : result.layers) {
    const LayerTransform& t = layer.transform;
    sides.push_back({t.layer, true, shares ? layer.key_spectrum.share : layer.key.fit, &t.key});
    sides.push_back({t.layer, false, shares ? layer.value_spectrum.share : layer.value.fit, &t.value});
  }
  std::stable_sort(sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.value > b.value; });
  std::string text = "worst     ";
  for (std::size_t i = 0; i < std::min(kShown, sides.size()); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(sides[i].layer) + (sides[i].key ? " keys " : " values ") +
            (shares ? formatted("%.0f%%", 100.0 * sides[i].value) : formatted("%.3f", sides[i].value)) + " (" +
            widths_of(*sides[i].side) + ")";
  }
  return wrapped(text + (shares ? " of the predicted error" : " relative error"), 10);
}

}  // namespace

std::string fit_summary(const Bundle& bundle, const FitResult& result) {
  return memory_line(bundle) + cache_line(bundle) + worst_line(result);
}

}  // namespace oscar
