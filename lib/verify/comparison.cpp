#include "verify/comparison.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "methods/engine.h"
#include "report/number_text.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostSink = 64;
constexpr double kBytesTolerance = 0.02;  // of the target

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

void append_new(std::vector<std::string>& list, const std::string& id) {
  if (!contains(list, id)) list.push_back(id);
}

std::string window_text(const CacheWindows& w) {
  std::string text = std::to_string(w.sink) + "/" + std::to_string(w.recent);
  if (w.flush > 1) text += " in blocks of " + std::to_string(w.flush);
  return text;
}

std::string settings_of(const KvMethod& m, const ModelConfig& model) {
  if (!m.quantized) return "";
  return "windows " + by_side(window_text(m.windows_of(Side::kKey)), window_text(m.windows_of(Side::kValue))) + ", " +
         m.coder->settings(m, model);
}

MethodSpec with_windows(MethodSpec m, const CacheWindows& windows) {
  for (SideCode* s : {&m.key, &m.value}) s->windows = {windows.sink, windows.recent, tile_tokens(*s)};
  return m;
}

// Doubles the groups of plain min/max codes. False if they are already at 128 or there are none.
bool grow_groups(MethodSpec& m) {
  bool grown = false;
  for (SideCode* s : {&m.key, &m.value}) {
    if (s->code != CacheCode::kUniform || s->group == 0 || s->group >= 128) continue;
    s->group *= 2;
    grown = true;
  }
  return grown;
}

LeftOut too_large(const std::string& id, double least, double target, std::int64_t context) {
  return {id, "bytes",
          "takes at least " + fixed(least, 2) + " bits per element at a context of " + std::to_string(context) +
              " tokens, its shortest windows included, and the target is " + fixed(target, 2)};
}

class Selector {
 public:
  Selector(const ComparisonRequest& request, const ModelConfig& model, const std::vector<NamedBundle>& bundles,
           bool lenient)
      : request_(request), model_(model), bundles_(bundles), lenient_(lenient) {}

  MethodSelection run() {
    if (contains(request_.comparisons, "bytes")) selection_.target_bits = target();
    for (const std::string& comparison : request_.comparisons) {
      for (const std::string& id : request_.ids) {
        if (has_role(id, MethodRole::kBaseline) && comparison != request_.comparisons.front()) continue;
        try {
          add(id, comparison);
        } catch (const UsageError& e) {
          if (!lenient_ || find_method_spec(id) == nullptr) throw;
          selection_.left_out.push_back({id, comparison, e.what()});
        }
      }
    }
    return std::move(selection_);
  }

 private:
  double target() const {
    if (request_.bits) {
      if (!(*request_.bits > 0 && *request_.bits <= 16)) {
        throw UsageError("--bits " + significant(*request_.bits, 6) + " is no number of bits from 0 to 16");
      }
      return *request_.bits;
    }
    double code = 2.0 + 32.0 / static_cast<double>(model_.head_dim);
    if (!bundles_.empty()) code = native(bundles_.front().id).bits_per_element();
    return bits_with_beside(bits_with_windows(code, request_.windows, request_.context), model_.coded_width(),
                            model_.latent.rope_dim);
  }

  // The registry name of a row.
  std::string method_of(const std::string& id) const {
    for (const NamedBundle& named : bundles_) {
      if (named.id == id) return named.bundle->method;
    }
    return id;
  }

  // The method of a bundle, or one of the table.
  KvMethod native(const std::string& id) const {
    for (const NamedBundle& named : bundles_) {
      if (named.id != id) continue;
      KvMethod m = make_method(id_of_bundle(named.bundle->method), model_, named.bundle, request_.windows);
      m.id = id;
      return m;
    }
    return make_method(id, model_, bundles_.empty() ? nullptr : bundles_.front().bundle, request_.windows);
  }

  void add(const std::string& id, const std::string& comparison) {
    const MethodSpec* description = find_method_spec(id);
    if (description == nullptr) {
      add_native(id, comparison);
      return;
    }
    MethodSpec m = *description;
    if (comparison == "common") m = with_windows(m, request_.windows);
    if (comparison == "bytes") {
      require_fit(m, model_);
      double least = 0;
      const auto matched = with_bits(m, selection_.target_bits, model_, request_.context, &least);
      if (!matched) {
        selection_.left_out.push_back(too_large(id, least, selection_.target_bits, request_.context));
        return;
      }
      m = *matched;
    }
    keep(make_spec_method(m, model_), comparison);
  }

  void add_native(const std::string& id, const std::string& comparison) {
    KvMethod m = native(id);
    if (comparison == "bytes" && m.quantized &&
        std::fabs(m.bits_per_element_at(request_.context) - selection_.target_bits) > 0.005) {
      const double elements = static_cast<double>(m.held_layers(model_) * model_.cached_width() * request_.context);
      const FoundWindows found =
          windows_for_bits(selection_.target_bits, request_.context, 1, 1, [&](const CacheWindows& windows) {
            m.windows = windows;
            return 8.0 * static_cast<double>(held_bytes(m, model_, request_.context)) / elements;
          });
      if (!found.windows) {
        selection_.left_out.push_back(too_large(id, found.least_bits, selection_.target_bits, request_.context));
        return;
      }
      m.windows = *found.windows;
    }
    keep(std::move(m), comparison);
  }

  void keep(KvMethod method, const std::string& comparison) {
    ComparedMethod compared{std::move(method), comparison, {}};
    compared.settings = settings_of(compared.method, model_);
    selection_.methods.push_back(std::move(compared));
  }

  const ComparisonRequest& request_;
  const ModelConfig& model_;
  const std::vector<NamedBundle>& bundles_;
  bool lenient_;
  MethodSelection selection_;
};

}  // namespace

std::vector<std::string> expand_methods(const std::vector<std::string>& names,
                                        const std::vector<NamedBundle>& bundles) {
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    if (name != "all" && name != "2bit") {
      ids.push_back(name);
      continue;
    }
    for (const std::string& id : default_methods()) append_new(ids, id);
    for (const NamedBundle& named : bundles) append_new(ids, named.id);
    for (const MethodRow& row : method_registry()) {
      if (row.description && (name == "all" || row.two_bit())) append_new(ids, row.id);
    }
  }
  return ids;
}

FoundWindows windows_for_bits(double bits, std::int64_t context, std::int64_t least_recent, std::int64_t flush,
                              const std::function<double(const CacheWindows&)>& bits_of) {
  FoundWindows found;
  found.least_bits = INFINITY;
  double nearest = kBytesTolerance * bits;
  for (std::int64_t tokens = least_recent; tokens <= context; ++tokens) {
    const std::int64_t sink = std::min(kMostSink, tokens - least_recent);
    const CacheWindows windows{sink, tokens - sink, flush};
    const double at = bits_of(windows);
    found.least_bits = std::min(found.least_bits, at);
    if (std::fabs(at - bits) > nearest) continue;
    if (found.windows && std::fabs(at - bits) == nearest) continue;
    nearest = std::fabs(at - bits);
    found.windows = windows;
  }
  return found;
}

std::optional<MethodSpec> with_bits(const MethodSpec& method, double bits, const ModelConfig& model,
                                    std::int64_t context, double* least) {
  MethodSpec m = method;
  const int heads = static_cast<int>(model.kv_heads), d = static_cast<int>(model.head_dim);
  const double elements = static_cast<double>(model.kv_heads * model.head_dim * context);
  *least = INFINITY;
  for (;;) {
    const auto find = [&](const SideCode& side) {
      const std::int64_t flush = tile_tokens(side);
      // A block is read in full precision before it is quantized.
      return windows_for_bits(bits, context, flush > 1 ? 1 : 0, flush, [&](const CacheWindows& windows) {
        SideCode at = side;
        at.windows = windows;
        return 8.0 * held_bytes(at, heads, d, context) / elements;
      });
    };
    const FoundWindows k = find(m.key), v = find(m.value);
    // Both sides must reach the target; the best of all group sizes counts.
    *least = std::min(*least, std::max(k.least_bits, v.least_bits));
    if (k.windows && v.windows) {
      // Both sides get equal sinks, so that tiles of both sides contain the same tokens.
      const std::int64_t sink = std::min(k.windows->sink, v.windows->sink);
      m.key.windows = {sink, k.windows->sink + k.windows->recent - sink, k.windows->flush};
      m.value.windows = {sink, v.windows->sink + v.windows->recent - sink, v.windows->flush};
      return m;
    }
    if (!grow_groups(m)) return std::nullopt;
  }
}

MethodSelection select_methods(const ComparisonRequest& request, const ModelConfig& model,
                               const std::vector<NamedBundle>& bundles, bool lenient) {
  for (const std::string& c : request.comparisons) {
    if (c != "authors" && c != "common" && c != "bytes") {
      throw UsageError("--compare '" + c + "' is not known: there is authors, common, bytes");
    }
    if (std::count(request.comparisons.begin(), request.comparisons.end(), c) > 1) {
      throw UsageError("--compare names '" + c + "' twice");
    }
  }
  return Selector(request, model, bundles, lenient).run();
}

}  // namespace oscar
