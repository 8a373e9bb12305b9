#include "verify/sequence_scorer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "verify/divergence.h"
#include "verify/forward.h"
#include "verify/verify_phases.h"

namespace oscar {

// Calls body() for blocks of scored positions of sequence s.
void SequenceScorer::for_each_block(std::size_t s, const Block& body) const {
  const std::vector<std::int32_t>& ids = set_.sequences[s];
  const std::int64_t last = std::ssize(ids) - 1;  // earlier positions predict a token
  const std::int64_t step = rows_per_block(decoder_.config().vocabulary, decoder_.options().device);
  for (std::int64_t from = first_position_; from < last; from += step) {
    stop_if_interrupted();
    const std::int64_t rows = std::min(step, last - from);
    body(from, rows,
         std::span<const std::int32_t>(ids).subspan(static_cast<std::size_t>(from) + 1, static_cast<std::size_t>(rows)),
         "sequence " + std::to_string(s) + ", positions " + std::to_string(from) + " to " +
             std::to_string(from + rows - 1));
  }
}

SequenceScorer::NullRun SequenceScorer::null_run(const at::Tensor& hidden, const at::Tensor& again) const {
  const Timeline::Phase checking(timeline_, verify_phase::kChecks);
  SequenceScores scores;
  for_each_block(
      0, [&](std::int64_t from, std::int64_t rows, std::span<const std::int32_t> targets, const std::string& where) {
        const BaselineRows base(decoder_.logits(hidden.narrow(0, from, rows)), targets, where);
        base.score(decoder_.logits(again.narrow(0, from, rows)), "bf16, second run", scores);
      });
  return {scores.kl.empty() ? 0.0 : *std::max_element(scores.kl.begin(), scores.kl.end()), std::ssize(scores.kl)};
}

std::int64_t SequenceScorer::score(std::size_t s, const at::Tensor& baseline, const std::vector<at::Tensor>& hidden,
                                   const std::vector<ScoredMethod>& scored,
                                   std::vector<std::vector<SequenceScores>>& all) const {
  const Timeline::Phase scoring(timeline_, verify_phase::kScoring);
  for (auto& row : all) row.push_back({first_position_, {}, {}, {}, {}});
  std::int64_t tokens = 0;
  for_each_block(
      s, [&](std::int64_t from, std::int64_t rows, std::span<const std::int32_t> targets, const std::string& where) {
        const at::Tensor base_logits = decoder_.logits(baseline.narrow(0, from, rows));
        const BaselineRows base(base_logits, targets, where);
        at::Tensor prefill_logits;
        std::size_t path = scored.size();
        for (std::size_t r = 0; r < hidden.size(); ++r) {
          const std::string name = scored[r].method->id + " (" + scored[r].path + ")";
          const at::Tensor logits =
              hidden[r].is_same(baseline) ? base_logits : decoder_.logits(hidden[r].narrow(0, from, rows));
          base.score(logits, name, all[r].back());
          if (all.size() == scored.size()) continue;
          if (scored[r].path == "prefill") {
            prefill_logits = logits;
          } else {
            BaselineRows(prefill_logits, targets, where).score(logits, name, all[path++].back());
          }
        }
        tokens += rows;
      });
  return tokens;
}

}  // namespace oscar
