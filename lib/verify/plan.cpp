#include "verify/plan.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "base/columns.h"
#include "base/errors.h"
#include "base/files.h"
#include "base/json.h"
#include "cache/kv_method.h"
#include "registry/registry.h"
#include "report/number_text.h"

namespace oscar {
namespace {

struct PlannedMethod {
  std::string id;
  std::function<double(std::int64_t context)> bits_at;  // per element, including windows
};

double bytes_at(const PlannedMethod& m, const ModelConfig& model, std::int64_t context) {
  const double elements = static_cast<double>(model.kv_layers() * model.cached_width());
  return std::ceil(m.bits_at(context) * elements * static_cast<double>(context) / 8.0);
}

PlanRow plan_row(const PlannedMethod& m, const ModelConfig& model, const MemoryPlan& plan) {
  PlanRow row{m.id, {}, 0};
  const double room = static_cast<double>(plan.memory - plan.weights);
  for (const std::int64_t context : plan.contexts) {
    const double bytes = bytes_at(m, model, context);
    row.cells.push_back(
        {context, m.bits_at(context), static_cast<std::uint64_t>(bytes), static_cast<std::int64_t>(room / bytes)});
  }
  std::int64_t low = 0, high = model.max_position + 1;  // low fits, high does not; bytes grow with the context
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (bytes_at(m, model, middle) <= room ? low : high) = middle;
  }
  row.longest_context = low;
  return row;
}

}  // namespace

std::uint64_t parse_memory(const std::string& text) {
  // Common spellings: "24GiB" and "24Gi" count in powers of 1024, "24GB" in powers of 1000, "24G" as GiB.
  static const std::map<std::string, double> kUnits = {
      {"", 1},        {"b", 1},        {"k", 0x1p10},  {"kb", 1e3},     {"ki", 0x1p10}, {"kib", 0x1p10},
      {"m", 0x1p20},  {"mb", 1e6},     {"mi", 0x1p20}, {"mib", 0x1p20}, {"g", 0x1p30},  {"gb", 1e9},
      {"gi", 0x1p30}, {"gib", 0x1p30}, {"t", 0x1p40},  {"tb", 1e12},    {"ti", 0x1p40}, {"tib", 0x1p40}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  if (unit.starts_with(' ')) unit.erase(0, 1);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto scale = kUnits.find(unit);
  if (error != std::errc() || scale == kUnits.end() || !(value > 0) || !(value * scale->second <= 1e15)) {
    throw UsageError("--memory '" + text + "' is no amount of memory; write it as 24G or 24GiB (both times 1024^3), " +
                     "80GB (times 1000^3) or a number of bytes");
  }
  return static_cast<std::uint64_t>(value * scale->second);
}

MemoryPlan plan_memory(const ModelConfig& model, std::uint64_t memory, std::uint64_t weights,
                       std::vector<std::int64_t> contexts, const CacheWindows& windows, double bits) {
  if (memory <= weights) {
    throw UsageError("the weights take " + format_bytes(weights) + ", and --memory is " + format_bytes(memory));
  }
  if (contexts.empty()) {
    for (std::int64_t c = 4096; c <= model.max_position; c *= 4) contexts.push_back(c);
    if (contexts.empty() || contexts.back() < model.max_position) contexts.push_back(model.max_position);
  }
  for (const std::int64_t c : contexts) {
    if (c < 1 || c > model.max_position) {
      throw UsageError("a context of " + std::to_string(c) + " tokens is beyond the model's " +
                       std::to_string(model.max_position) + " positions");
    }
  }
  MemoryPlan plan{memory, weights, std::move(contexts), {}, {}};
  const auto with_windows = [&](double code_bits) {
    return [code_bits, windows, &model](std::int64_t context) {
      return bits_with_beside(bits_with_windows(code_bits, windows, context), model.coded_width(),
                              model.latent.rope_dim);
    };
  };
  std::vector<PlannedMethod> methods;
  for (const MethodRow& row : method_registry()) {
    if (row.role == MethodRole::kBaseline) methods.push_back({row.id, with_windows(16.0)});
    if (row.allocates_bits) methods.push_back({row.id, with_windows(bits)});
    if (row.role == MethodRole::kReference) {
      methods.push_back({row.id, with_windows(2.0 + 32.0 / static_cast<double>(model.head_dim))});
    }
    if (!row.description) continue;
    try {
      methods.push_back({row.id, [method = make_spec_method(*row.description, model)](std::int64_t context) {
                           return method.bits_per_element_at(context);
                         }});
    } catch (const UsageError& e) {
      plan.do_not_fit.push_back({row.id, e.what()});
    }
  }
  for (const PlannedMethod& m : methods) plan.rows.push_back(plan_row(m, model, plan));
  std::stable_sort(plan.rows.begin(), plan.rows.end(), [](const PlanRow& a, const PlanRow& b) {
    return a.cells.back().sequence_bytes < b.cells.back().sequence_bytes;
  });
  return plan;
}

std::string plan_table(const MemoryPlan& plan) {
  std::string text = format_bytes(plan.memory) + " of memory, " + format_bytes(plan.weights) +
                     " of weights; the rest holds caches (activations not counted)\n";
  const auto pad = [](const std::string& s, std::size_t width) {
    return s + std::string(width > s.size() ? width - s.size() : 0, ' ');
  };
  constexpr std::size_t kAtOnce = 3;  // contexts within the width of a terminal
  for (std::size_t from = 0; from < plan.contexts.size(); from += kAtOnce) {
    const std::size_t to = std::min(from + kAtOnce, plan.contexts.size());
    const bool last = to == plan.contexts.size();
    const auto line = [&](const std::string& id, const std::string& bits, const auto& cell, const std::string& end) {
      std::string cells = pad(id, 20) + pad(bits, 7);
      for (std::size_t c = from; c < to; ++c) cells += pad(cell(c), 18);
      cells += last ? end : "";
      cells.erase(cells.find_last_not_of(' ') + 1);
      text += cells + "\n";
    };
    text += from > 0 ? "\n" : "";
    line(
        "method", "bits", [&](std::size_t c) { return "at " + grouped(plan.contexts[c]); }, "longest");
    for (const PlanRow& row : plan.rows) {
      const auto cell = [&](std::size_t c) {
        return format_bytes(row.cells[c].sequence_bytes) + " x" + grouped(row.cells[c].batch);
      };
      line(row.id, fixed(row.cells.back().bits, 2), cell, grouped(row.longest_context));
    }
  }
  text +=
      wrapped("bits: per element at the longest context; then bytes of a sequence x how many fit; longest: context");
  for (const PlanGap& gap : plan.do_not_fit) text += wrapped("left out: " + gap.id + ": " + gap.reason);
  return text;
}

std::string plan_json(const MemoryPlan& plan) {
  Json rows = Json::array();
  for (const PlanRow& row : plan.rows) {
    Json cells = Json::array();
    for (const PlanCell& c : row.cells) {
      cells.push_back({{"context", c.context},
                       {"bits_per_element", c.bits},
                       {"sequence_bytes", c.sequence_bytes},
                       {"batch", c.batch}});
    }
    rows.push_back({{"id", row.id}, {"contexts", cells}, {"longest_context", row.longest_context}});
  }
  Json gaps = Json::array();
  for (const PlanGap& gap : plan.do_not_fit) gaps.push_back(gap.id);
  return dump_json(
      Json{{"memory", plan.memory}, {"weights", plan.weights}, {"methods", rows}, {"do_not_fit", std::move(gaps)}});
}

}  // namespace oscar
