#include "verify/method_list.h"

#include <algorithm>

#include "base/columns.h"
#include "base/errors.h"
#include "base/json.h"
#include "cache/kv_method.h"
#include "methods/engine.h"
#include "report/number_text.h"

namespace oscar {
namespace {

constexpr std::int64_t kHeads = 8, kHeadDim = 128;  // without a model

std::string windows_text(const CacheWindows& w) {
  return std::to_string(w.sink) + "/" + std::to_string(w.recent + (w.flush > 1 ? w.flush - 1 : 0));
}

}  // namespace

std::vector<ListedMethod> list_methods(const ModelConfig* model) {
  const int d = static_cast<int>(model != nullptr ? model->head_dim : kHeadDim);
  std::vector<ListedMethod> list;
  for (const MethodRow& row : method_registry()) {
    if (!row.listed) continue;
    ListedMethod m{row.id, row.summary, row.source, 0, "", row.needs_bundle(), row.paged(), ""};
    if (const auto& description = row.description) {
      m.bits = 0.5 * (bits_per_element(description->key, d) + bits_per_element(description->value, d));
      const std::string key = windows_text(description->key.windows), value = windows_text(description->value.windows);
      m.windows = key == value ? key : "K " + key + ", V " + value;
      try {
        if (model != nullptr) require_fit(*description, *model);
      } catch (const UsageError& e) {
        m.does_not_fit = e.what();
      }
    } else {
      m.bits = row.allocates_bits ? kUsualBits : row.quantized ? uniform_code(d).bits_per_element() : 16.0;
    }
    list.push_back(std::move(m));
  }
  return list;
}

std::string method_list_table(const std::vector<ListedMethod>& methods, const ModelConfig* model) {
  std::vector<std::vector<std::string>> rows{{"method", "bits", "windows", "paths", "what it does; source"}};
  for (const ListedMethod& m : methods) {
    std::string what = m.summary + "; " + m.source + (m.needs_bundle ? " (needs --bundle)" : "");
    if (!m.does_not_fit.empty()) what += " (does not fit this model)";
    rows.push_back({m.id, fixed(m.bits, 2), m.windows.empty() ? (m.bits < 16 ? "--windows" : "") : m.windows,
                    m.decode ? "prefill, decode" : "prefill", what});
  }
  std::size_t indent = 0;  // of the last column, whose text is wrapped
  std::vector<std::size_t> widths(rows.front().size() - 1, 0);
  for (std::size_t c = 0; c < widths.size(); ++c) {
    for (const auto& row : rows) widths[c] = std::max(widths[c], row[c].size());
    indent += widths[c] + 2;
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) line += row[c] + std::string(widths[c] - row[c].size() + 2, ' ');
    text += wrapped(line + row.back(), indent);
  }
  const std::int64_t heads = model != nullptr ? model->kv_heads : kHeads;
  const std::int64_t d = model != nullptr ? model->head_dim : kHeadDim;
  return text +
         wrapped("bits: per element of a coded token, parameters included, for " + std::to_string(heads) +
                 " KV heads of size " + std::to_string(d) +
                 "; windows: full-precision tokens at the start/end as the authors have them (--compare authors)") +
         "--methods also takes all, 2bit, and with a bundle the names of its rows\n";
}

std::string method_list_json(const std::vector<ListedMethod>& methods) {
  Json rows = Json::array();
  for (const ListedMethod& m : methods) {
    rows.push_back({{"id", m.id},
                    {"bits_per_element", m.bits},
                    {"windows", m.windows.empty() ? Json(nullptr) : Json(m.windows)},
                    {"needs_bundle", m.needs_bundle},
                    {"decode", m.decode},
                    {"does_not_fit", m.does_not_fit.empty() ? Json(nullptr) : Json(m.does_not_fit)},
                    {"summary", m.summary},
                    {"source", m.source}});
  }
  return dump_json(Json{{"methods", rows}});
}

void require_known_methods(const std::vector<std::string>& names) {
  const std::vector<std::string> known = method_ids();
  for (const std::string& name : names) {
    if (name != "all" && name != "2bit" && std::find(known.begin(), known.end(), name) == known.end()) {
      refuse_method(name, nullptr);
    }
  }
}

}  // namespace oscar
