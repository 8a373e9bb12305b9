#include "pipeline/fit/fit_measure.h"

#include <algorithm>

#include "base/columns.h"
#include "base/errors.h"
#include "base/formatted.h"
#include "base/log.h"
#include "cache/kv_method.h"
#include "registry/registry.h"
#include "report/number_text.h"
#include "verify/gates.h"

namespace oscar {
namespace {

constexpr int kDigits = 6;
constexpr std::int64_t kProbeTokens = 512, kProbeScored = 64;

SequenceSet set_of(const HeldOutText& text) { return {text.sequences, text.context(), text.tokens, 0}; }

// "0.0104 +- 0.0012 (95% interval)".
std::string kl_text(const Measured& m) {
  return significant(m.quality.kl.mean, 3) + " +- " + half_width(m.quality.kl.mean, m.quality.kl.interval);
}

}  // namespace

HeldOutRun::HeldOutRun(const Checkpoint& checkpoint, DecoderOptions decoding, HeldOutText text,
                       const CacheWindows& windows)
    : model_(checkpoint.config()),
      text_(std::move(text)),
      windows_(windows),
      scores_(checkpoint, decoding, set_of(text_), windows) {}

Measured HeldOutRun::measure(const Bundle& bundle) {
  const KvMethod method = make_method(id_of_bundle(bundle.method), model_, &bundle, windows_);
  return {text_.context(), std::ssize(text_.sequences), scores_.measure(method, {})};
}

Json HeldOutRun::probe() const {
  const SequenceScores& scores = scores_.first_scores();
  // Position p scores token p + 1.
  const std::int64_t tokens =
      std::min(text_.context(), std::max(kProbeTokens, scores.first_position + kProbeScored + 1));
  const std::int64_t end = tokens - 1 - scores.first_position, count = std::min(kProbeScored, end);
  if (count < 1) return nullptr;
  const std::vector<std::int32_t>& ids = text_.sequences.front();
  Json bf16 = Json::array(), bundle = Json::array();
  double kl = 0;
  for (auto i = static_cast<std::size_t>(end - count); i < static_cast<std::size_t>(end); ++i) {
    bf16.push_back(rounded(-scores.baseline_nll[i], kDigits));
    bundle.push_back(rounded(-scores.nll[i], kDigits));
    kl += scores.kl[i] / static_cast<double>(count);
  }
  return {{"format", "oscar-probe"},
          {"format_version", 1},
          {"token_ids", std::vector<std::int32_t>(ids.begin(), ids.begin() + tokens)},
          {"bf16", std::move(bf16)},
          {"bundle", std::move(bundle)},
          {"kl", rounded(kl, kDigits)}};
}

void climb(TargetChoice& choice, const TargetArguments& target, const Measured& measured, const std::string& kept) {
  const double limit = target.kl_target();
  const BudgetRow& tried = choice.rows[choice.chosen];
  const double error = measured.quality.kl.mean / std::max(tried.predicted.kl, 1e-9);
  std::size_t next = choice.chosen + 1;
  while (next < choice.rows.size() && choice.rows[next].predicted.kl * error > limit) ++next;
  if (next == choice.rows.size() && choice.chosen + 1 < next) --next;  // the largest budget has the last word
  const std::string found = bits_text(tried.bits) + " bits have a KL of " + kl_text(measured) + " on held-out text, " +
                            significant(error, 2) + " times the prediction";
  if (next == choice.rows.size()) {
    throw Error(ExitCode::kGateFailed,
                std::string(target.option()) + ": no budget meets the KL of " + significant(limit, 3) + ": " + found +
                    "; calibrate on more text, or keep more tokens in BF16 (--windows 64,1024)" + kept);
  }
  log_info(found + ", above the target of " + significant(limit, 3) + ": trying " + bits_text(choice.rows[next].bits) +
           " bits");
  choice.chosen = next;
}

Json measured_json(const HeldOutText& text, const Measured& m) {
  const auto interval = [](const std::optional<Interval>& i) {
    return i ? Json::array({rounded(i->low, kDigits), rounded(i->high, kDigits)}) : Json(nullptr);
  };
  const QualityMetrics& q = m.quality;
  return {{"text", text.own ? "self-generated" : "held-out prompts"},
          {"context", m.context},
          {"sequences", m.sequences},
          {"tokens", q.tokens},
          {"kl", rounded(q.kl.mean, kDigits)},
          {"kl_ci", interval(q.kl.interval)},
          {"perplexity_ratio", rounded(q.ppl_ratio, kDigits)},
          {"perplexity_ratio_ci", interval(q.ppl_ratio_interval)},
          {"same_top1", rounded(q.same_top1, kDigits)}};
}

void record_measured(Bundle& bundle, const HeldOutText& text, const Measured& measured) {
  bundle.provenance["measured"] = measured_json(text, measured);
}

std::string measured_text(const HeldOutText& text, const Measured& m, const TargetArguments* target) {
  std::string notes;
  if (m.context < text.served) {
    notes += wrapped("context   measured at " + grouped(m.context) + " tokens, and the bundle serves " +
                         grouped(text.served) + ": there the KL is higher (oscar-verify --context " +
                         std::to_string(text.served) + ")",
                     10);
  }
  const QualityMetrics& q = m.quality;
  std::string line = "measured  KL " + kl_text(m) + ", PPL ratio " + fixed(q.ppl_ratio, 3) + ", same top " +
                     percent(q.same_top1, 1) + "%, on " + std::to_string(m.sequences) + " held-out sequences of " +
                     grouped(m.context) + " tokens" + (text.own ? " that the model wrote itself" : "");
  if (target != nullptr) {
    line += ": meets " + (target->preset.empty() ? "the target" : "preset " + target->preset) + " of " +
            significant(target->kl_target(), 3);
  } else if (q.kl.mean > kDefaultMaxKl) {
    line += ": above the default gate of " + significant(kDefaultMaxKl, 3) + ", spend more bits (--bits)";
  }
  return notes + wrapped(line, 10);
}

}  // namespace oscar
