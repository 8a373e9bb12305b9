#include "verify/self_checks.h"

#include <algorithm>

#include "registry/registry.h"
#include "report/number_text.h"

namespace oscar {
namespace {

// Limits on the relative difference of attention outputs between decode attention and the simulated prefill on equal
// inputs. It comes from the order of FP32 summation and, with BF16 activations, from rounding the output.
// A GPU's decode kernel takes queries in BF16, which moves logits of large keys by some hundredths (0.011 of the output
// on tiny-qwen3-outliers).
constexpr double kReaderLimit = 1e-4, kReaderLimitBf16 = 1e-2, kReaderLimitGpu = 3e-2;

// Limits on the mean KL between the paths, as a share of the method's own KL to the baseline, with a floor. Rounding
// differs between the paths. A key between two codes may get the other one, and later layers propagate the difference.
// In BF16, rounding of activations without further causes gives up to .0010 (tiny-qwen3, H100). The paths'
// inputs then differ by rounding, which flips codes: up to .23 of a method's KL was observed.
constexpr double kPathShare = 0.1, kPathShareBf16 = 0.4, kPathFloor = 1e-5, kPathFloorBf16 = 2e-3;

// Above this KL to the baseline (nats), a cache has lost the model, and layers amplify rounding to different wrong
// answers. Such a method is not evaluated.
constexpr double kLostKl = 1.0;
// The quantized share of a query's keys grows from about half in the second quarter to nearly all. KL may grow with it,
// but errors that accumulate with length grow faster.
constexpr double kDriftLimit = 4.0;
// KL of single tokens has a spread of about five times its mean, and tokens of one sequence are correlated. The mean of
// a thousand tokens has an error of about 30 %, so a chance ratio of four is beyond three deviations. With fewer tokens
// in either quarter the check cannot decide.
constexpr std::int64_t kDriftTokens = 1000;
// A last quarter below this KL (nats, docs/quality.md) is nearly lossless and passes with any ratio. One token can
// dominate such a small KL.
constexpr double kHarmlessKl = 0.01;
// If OSCAR's own row ran too, a bundle may not grow much faster than it. The factor is two because, at the fewest
// tokens, each ratio has an error of some 40 %.
constexpr double kDriftOfOscar = 2.0;

SelfCheck null_run(const RunnerResult& run) {
  SelfCheck check{"null_run", "", run.null_kl, 0.0, run.null_kl == 0.0};
  check.detail = "BF16 cache run twice on the first sequence, " + grouped(run.null_tokens) + " tokens: largest KL " +
                 significant(run.null_kl, 3);
  return check;
}

SelfCheck negative_control(const VerifyReport& report) {
  const std::string& control = method_with(MethodRole::kNegativeControl).id;
  SelfCheck check{"negative_control", "no " + control + " beside a bundle (--methods " + control + ")", std::nullopt,
                  std::nullopt, std::nullopt};
  for (const LeftOut& l : report.left_out) {
    if (l.id == control) check.detail = control + " was left out (" + l.comparison + "): " + l.reason;
  }
  for (const MethodReport& bundle : report.methods) {
    const std::string &evaluated = bundle.id, &path = bundle.path;
    const auto naive = std::find_if(report.methods.begin(), report.methods.end(), [&](const MethodReport& m) {
      return m.id == control && m.path == path && m.comparison == bundle.comparison;
    });
    if (!bundle.candidate() || naive == report.methods.end() || naive->id == evaluated) continue;
    if (bundle.comparison == "authors") {  // with more BF16 tokens the control may be better
      if (!check.pass) check.detail = control + " has other BF16 windows than " + evaluated + " (authors): no control";
      continue;
    }
    const double bad = naive->quality.kl.mean, good = bundle.quality.kl.mean;
    if (check.pass && !*check.pass) continue;  // the failed path is shown
    check.value = bad;
    check.limit = good;
    check.pass = bad > good;
    check.detail = "mean KL of " + control + " (" + path + ") is " + significant(bad, 3) + ", " +
                   (bad > good ? "worse than " : "not worse than ") + evaluated + " with " + significant(good, 3);
  }
  return check;
}

SelfCheck writer_reader(const VerifyReport& report, const RunnerResult& run, bool bfloat16, bool gpu) {
  SelfCheck check{"writer_reader", "", std::nullopt, 0.0, true};
  const double limit = gpu ? kReaderLimitGpu : bfloat16 ? kReaderLimitBf16 : kReaderLimit;
  CacheCheck all;
  for (const CacheCheck& c : run.caches) {
    all.rows += c.rows, all.differing += c.differing;
    all.read += c.read, all.misread += c.misread;
    all.reader_error = std::max(all.reader_error, c.reader_error);
  }
  check.value = static_cast<double>(all.differing + all.misread);
  check.pass = all.differing == 0 && all.misread == 0 && all.reader_error <= limit;
  check.detail = grouped(all.differing) + " of " + grouped(all.rows) +
                 " rows of the paged cache differ from the reference codec, and " + grouped(all.misread) + " of " +
                 grouped(all.read) +
                 " read back from those that are scored; attention read from the pages differs by " +
                 significant(all.reader_error, 2) + " of its norm (at most " + significant(limit, 2) + " allowed)";
  if (report.scoring.context <= report.sink + report.recent) check.pass = std::nullopt;
  if (all.rows == 0 && all.reader_error == 0.0) {
    check.pass = std::nullopt;
    check.detail = "no method of this run has pages that could be compared";
  }
  return check;
}

SelfCheck prefill_decode(const RunnerResult& run, bool reduced) {
  SelfCheck check{"prefill_decode", "", std::nullopt, std::nullopt, std::nullopt};
  if (run.path_difference.empty()) {
    check.detail = "one path ran whole; --path both without --decode-last compares them";
    return check;
  }
  double worst = -1;
  std::size_t method = 0;
  std::string lost;  // methods that are not evaluated
  for (std::size_t r = 0; r < run.scored.size(); ++r) {
    const ScoredMethod& scored = run.scored[r];
    if (scored.path != "decode") continue;
    const double difference = run.path_difference[method++].mean;
    const double own = summarize(run.scores.row(r), {0, 0.95, 0}).kl.mean;
    if (own > kLostKl) {
      lost += (lost.empty() ? "" : ", ") + scored.method->id;
      continue;
    }
    const double share = reduced ? kPathShareBf16 : kPathShare;
    const double limit = std::max(reduced ? kPathFloorBf16 : kPathFloor, share * own);
    check.pass = check.pass.value_or(true) && difference <= limit;
    if (difference / limit <= worst) continue;
    worst = difference / limit;
    check.value = difference;
    check.limit = limit;
    check.detail = "largest against its limit: " + scored.method->id + ", mean KL of decode to prefill " +
                   significant(difference, 3) + " (" + significant(limit, 3) + " allowed, " + significant(share, 1) +
                   " of its own KL)";
  }
  if (!lost.empty()) {
    check.detail += (check.detail.empty() ? "" : "; ") + std::string("not tested, more than 1 nat from BF16: ") + lost;
  }
  return check;
}

bool enough_tokens(const KlGrowth& growth) { return std::min(growth.early_tokens, growth.late_tokens) >= kDriftTokens; }

// The row of the method OSCAR with the same settings as `evaluated`.
const MethodReport* oscar_row(const VerifyReport& report, const MethodReport& evaluated) {
  for (const MethodReport& m : report.methods) {
    const bool alike = m.path == evaluated.path && m.comparison == evaluated.comparison;
    if (has_role(m.id, MethodRole::kReference) && &m != &evaluated && alike && !m.by_position.empty()) return &m;
  }
  return nullptr;
}

SelfCheck drift(const VerifyReport& report) {
  SelfCheck check{"drift", "no bundle whose drift with length could be tested", std::nullopt, kDriftLimit,
                  std::nullopt};
  double worst = 0;  // growth divided by its limit
  for (const MethodReport& m : report.methods) {
    const std::optional<KlGrowth> own = m.candidate() ? kl_growth(m.by_position) : std::nullopt;
    if (!own) continue;
    if (!enough_tokens(*own)) {
      if (!check.value) {
        check.detail = "the second and last quarters of the positions hold " + grouped(own->early_tokens) + " and " +
                       grouped(own->late_tokens) + " tokens, and drift with length needs " + grouped(kDriftTokens) +
                       " in each: score more sequences";
      }
      continue;
    }
    double limit = kDriftLimit;
    std::string beside;
    if (const MethodReport* oscar = oscar_row(report, m)) {
      const std::optional<KlGrowth> theirs = kl_growth(oscar->by_position);
      if (theirs && enough_tokens(*theirs)) {
        limit = std::min(limit, kDriftOfOscar * std::max(theirs->ratio(), 1.0));
        beside = "; oscar's row grows " + significant(theirs->ratio(), 3) + " times";
      }
    }
    const bool harmless = own->late <= kHarmlessKl;
    const double rank = harmless ? 0.0 : own->ratio() / limit;  // the largest rank is reported
    if (check.value && rank <= worst) continue;
    worst = rank;
    check.value = own->ratio();
    check.limit = limit;
    check.pass = harmless || own->ratio() <= limit;
    check.detail = "mean KL of " + m.id + " (" + m.path + ") is " + significant(own->late, 3) +
                   " over the last quarter of the positions and " + significant(own->early, 3) + " over the second; " +
                   (harmless ? "up to " + significant(kHarmlessKl, 2) + " any growth is allowed"
                             : "at most " + significant(limit, 2) + " times as much is allowed" + beside);
  }
  return check;
}

}  // namespace

std::vector<SelfCheck> self_checks(const VerifyReport& report, const RunnerResult& run, bool bfloat16, bool gpu) {
  return {null_run(run),
          negative_control(report),
          writer_reader(report, run, bfloat16, gpu),
          prefill_decode(run, bfloat16 || gpu),
          drift(report),
          prediction_check(report)};
}

}  // namespace oscar
