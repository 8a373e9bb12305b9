// The run in words: gates, the verdict, memory, and the layers with the largest loss.
#include <algorithm>
#include <cmath>

#include "base/foreign_text.h"
#include "report/number_text.h"
#include "report/report.h"
#include "transform/profile_allocation.h"

namespace oscar {
namespace {

std::string context_text(std::int64_t tokens) {
  return tokens % 1024 == 0 ? std::to_string(tokens / 1024) + "K" : grouped(tokens);
}

// "1 of 60 tokens differs": counts changed most probable tokens.
std::string changed_tokens(double same) {
  const double changed = 1.0 - same;
  if (!(changed > 0.0)) return "no token differs";
  if (changed >= 0.1) return fixed(100.0 * changed, 0) + " of 100 tokens differ";
  return "1 of " + grouped(std::llround(1.0 / changed)) + " tokens differs";
}

const GateResult* deciding_gate(const VerifyReport& report, const MethodReport& method) {
  const GateResult* found = nullptr;
  for (const GateResult& gate : report.gates) {
    if (gate.method != method.id || gate.path != method.path) continue;
    if (found == nullptr || (found->pass && !gate.pass)) found = &gate;
  }
  return found;
}

const SelfCheck* failed_check(const VerifyReport& report) {
  for (const SelfCheck& check : report.checks) {
    if (!check.pass.value_or(true)) return &check;
  }
  return nullptr;
}

std::string ending(const VerifyReport& report, const MethodReport& method) {
  const GateResult* gate = deciding_gate(report, method);
  if (method.beside && gate != nullptr) return gate->pass ? "would pass" : "would fail";
  if (gate != nullptr && !gate->pass) return gate->text.empty() ? "FAIL" : "FAIL on " + gate->text;
  if (!method.beside && failed_check(report) != nullptr) return "FAIL";
  if (gate != nullptr) return "PASS";
  return report.undecided.empty() ? "no gate" : "no verdict";
}

}  // namespace

std::string noise_text(const VerifyReport& report) {
  if (!report.noise) return {};
  std::string text;
  const auto add = [&](const std::string& what, double kl) {
    text += (text.empty() ? "KL of " : ", ") + what + " " + significant(kl, 3);
  };
  if (report.noise->arithmetic) add("the BF16 cache in BF16 arithmetic", *report.noise->arithmetic);
  for (const auto& [id, kl] : report.noise->without_codes) add(printable(id) + " without codes", kl);
  return text + ", on " + grouped(report.noise->tokens) + " tokens";
}

std::string served_text(const ServedFacts& served) {
  return "what " + served.runs + " at " + served.url + " answers for " + printable(served.model) + "; KL of its " +
         std::to_string(served.top) + " most probable tokens and the rest";
}

const BundleFacts* bundle_of(const VerifyReport& report, const MethodReport& method) {
  for (const BundleFacts& bundle : report.bundles) {
    if (method.evaluated && bundle.row == method.id) return &bundle;
  }
  return nullptr;
}

std::string gate_text(const VerifyReport& report, const GateResult& gate) {
  std::string text =
      gate.name + " of " + gate.method + " (" + gate.path + ")" + (gate.text.empty() ? "" : " on " + gate.text) + ": ";
  text += gate.value ? significant(*gate.value, 4) : "not measured";
  if (gate.bound) text += ", " + percent(report.bootstrap_level, 0) + "% interval to " + significant(*gate.bound, 3);
  text += ", limit " + significant(gate.limit, 4);
  if (report.default_gate) text += " (default)";
  return gate.reason.empty() ? text : text + "; " + gate.reason;
}

std::string memory_text(const MethodReport& method) {
  if (method.ratios.empty()) return "";
  const CacheRatio &first = method.ratios.front(), &last = method.ratios.back();
  std::string text = fixed(first.ratio, 1) + "x smaller at " + context_text(first.context);
  if (method.ratios.size() > 1) text += ", " + fixed(last.ratio, 1) + "x at " + context_text(last.context);
  return text;
}

std::vector<Verdict> verdicts(const VerifyReport& report) {
  std::vector<Verdict> all;
  const auto evaluated = std::count_if(report.methods.begin(), report.methods.end(),
                                       [](const MethodReport& m) { return m.evaluated && m.quantized; });
  const auto tell = [&](const MethodReport& m) {
    std::string text = evaluated > 1 ? m.id + " (" + m.path + "): " : "";
    text += changed_tokens(m.quality.same_top1) + ", perplexity " +
            significant(m.quality.ppl / m.quality.ppl_ratio, 4) + " -> " + significant(m.quality.ppl, 4);
    if (const std::string memory = memory_text(m); !memory.empty()) text += ", cache " + memory;
    const GateResult* gate = deciding_gate(report, m);
    Verdict verdict{text + ": " + ending(report, m), {}};
    if (gate != nullptr) verdict.pass = gate->pass;
    if (!m.beside && failed_check(report) != nullptr) verdict.pass = false;
    all.push_back(std::move(verdict));
  };
  for (const bool beside : {true, false}) {
    for (const MethodReport& m : report.methods) {
      if (m.evaluated && m.quantized && m.beside == beside) tell(m);
    }
  }
  return all;
}

std::vector<std::string> verdict_sentences(const VerifyReport& report) {
  std::vector<std::string> sentences;
  for (Verdict& verdict : verdicts(report)) sentences.push_back(std::move(verdict.sentence));
  return sentences;
}

std::string smaller_text(const VerifyReport& report, const MethodReport& method) {
  for (const MethodReport& m : report.methods) {
    if (m.quantized || m.path != method.path || method.allocated_bytes == 0) continue;
    return fixed(static_cast<double>(m.allocated_bytes) / static_cast<double>(method.allocated_bytes), 1) + "x";
  }
  return method.bits_per_element > 0 ? fixed(16.0 / method.bits_per_element, 1) + "x" : "-";
}

std::vector<std::string> recall_sentences(const VerifyReport& report) {
  std::vector<std::string> sentences;
  for (const MethodReport& m : report.methods) {
    if (!m.evaluated || !m.quantized || !m.recall) continue;
    sentences.push_back("repeated phrases: " + m.id + " (" + m.path + ") predicts " + percent(m.recall->share, 1) +
                        "% of " + grouped(m.recall->tokens) + ", the BF16 cache " + percent(m.recall->baseline, 1) +
                        "%");
  }
  return sentences;
}

std::string worst_layers_text(const VerifyReport& report, const MethodReport& method) {
  constexpr std::size_t kShown = 3;
  std::vector<std::size_t> order(method.layers.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return method.layers[a].mean.attention_kl > method.layers[b].mean.attention_kl;
  });
  const BundleFacts* bundle = bundle_of(report, method);
  const bool widths = bundle != nullptr && bundle->key_widths.size() == method.layers.size() &&
                      bundle->value_widths.size() == method.layers.size();
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, order.size()); ++i) {
    const LayerError& layer = method.layers[order[i]];
    text += (i == 0 ? "" : ", ") + std::to_string(layer.layer) + " (" + significant(layer.mean.attention_kl, 2);
    if (widths) {
      text += "; keys " + widths_text(bundle->key_widths.at(order[i])) + ", values " +
              widths_text(bundle->value_widths.at(order[i]));
    }
    text += ")";
  }
  return text;
}

}  // namespace oscar
