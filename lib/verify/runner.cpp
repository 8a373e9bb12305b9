#include "verify/runner.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/progress.h"
#include "verify/divergence.h"
#include "verify/forward.h"
#include "verify/probe.h"

namespace oscar {
namespace {

using Sequence = std::vector<std::int32_t>;

class Runner {
 public:
  Runner(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
         const SequenceSet& set, const RunnerOptions& options)
      : decoder_(decoder),
        methods_(methods),
        baseline_(baseline),
        set_(set),
        options_(options),
        progress_("verify", planned_tokens(), "tokens") {
    for (const KvMethod* m : methods) {
      probed_.emplace_back(*m, decoder.config(), decoder.options().device);
      if (options.prefill) result_.scored.push_back({m, "prefill", {}});
      if (!options.decode || !m->paged()) continue;
      result_.scored.push_back({m, "decode", {}});
      ++paged_;
    }
    paths_.resize(options.prefill && options.decode ? paged_ : 0);
  }

  RunnerResult run() {
    const auto group = static_cast<std::size_t>(options_.decode ? options_.decode_batch : 1);
    for (std::size_t begin = 0; begin < set_.sequences.size(); begin += group) {
      run_group(begin, std::min(begin + group, set_.sequences.size()));
    }
    for (const ProbedMethod& p : probed_) {
      result_.layers.push_back(p.layers());
      result_.caches.push_back(p.cache ? p.cache->result() : CacheCheck{});
    }
    for (const auto& scores : paths_) result_.path_difference.push_back(summarise(scores, {0, 0.95, 0}).kl);
    progress_.finish();
    return std::move(result_);
  }

 private:
  // Tokens through a forward pass: the unit of the progress bar.
  std::uint64_t planned_tokens() const {
    const auto tokens = static_cast<std::uint64_t>(set_.sequences.size()) * static_cast<std::uint64_t>(set_.context);
    std::uint64_t passes = 1;
    for (const KvMethod* m : methods_) {
      passes += (options_.prefill && m->quantised ? 1 : 0) + (options_.decode && m->paged() ? 1 : 0);
    }
    return tokens * passes + static_cast<std::uint64_t>(set_.context);  // and the null run
  }

  // Hidden states of sequences [begin, end) for the baseline and each row of result_.scored, then their scores.
  void run_group(std::size_t begin, std::size_t end) {
    const std::size_t count = end - begin;
    std::vector<at::Tensor> baseline(count);
    std::vector<std::vector<at::Tensor>> hidden(result_.scored.size(), std::vector<at::Tensor>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t s = begin + i;
      baseline[i] = run_baseline(s);
      if (options_.prefill) run_prefill(set_.sequences[s], baseline[i], i, hidden);
    }
    if (options_.decode) run_decode(begin, end, hidden);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<at::Tensor> rows;
      for (const auto& h : hidden) rows.push_back(h[i]);
      score_sequence(begin + i, baseline[i], rows);
    }
  }

  at::Tensor run_baseline(std::size_t s) {
    SimulatedPrefillAttention exact(baseline_);
    LayerProbe probe(exact, decoder_, probed_, options_.first_position, options_.tiers, s == 0);
    const bool probed = s == 0 || static_cast<std::int64_t>(s) < options_.layer_sequences;
    const Sequence& ids = set_.sequences[s];
    const at::Tensor hidden = prefill_hidden(decoder_, ids, {probed ? static_cast<Attention*>(&probe) : &exact})[0];
    progress_.advance(ids.size());
    if (s == 0) {
      const at::Tensor again = prefill_hidden(decoder_, ids, {&exact})[0];
      progress_.advance(ids.size());
      SequenceScores scores;
      for_each_block(0, [&](std::int64_t from, std::int64_t rows, std::span<const std::int32_t> targets,
                            const std::string& where) {
        const BaselineRows base(decoder_.logits(hidden.narrow(0, from, rows)), targets, where);
        base.score(decoder_.logits(again.narrow(0, from, rows)), "bf16, second run", scores);
      });
      result_.null_kl = scores.kl.empty() ? 0.0 : *std::max_element(scores.kl.begin(), scores.kl.end());
      result_.null_tokens = std::ssize(scores.kl);
    }
    return hidden;
  }

  void run_prefill(const Sequence& ids, const at::Tensor& baseline, std::size_t i,
                   std::vector<std::vector<at::Tensor>>& hidden) {
    std::vector<std::unique_ptr<SimulatedPrefillAttention>> owned;
    std::vector<Attention*> attentions;
    std::vector<std::size_t> rows;
    for (std::size_t r = 0; r < result_.scored.size(); ++r) {
      if (result_.scored[r].path != "prefill") continue;
      if (!result_.scored[r].method->quantised) {
        hidden[r][i] = baseline;
        continue;
      }
      owned.push_back(std::make_unique<SimulatedPrefillAttention>(*result_.scored[r].method));
      attentions.push_back(owned.back().get());
      rows.push_back(r);
    }
    const std::vector<at::Tensor> states = prefill_hidden(decoder_, ids, attentions);
    for (std::size_t a = 0; a < rows.size(); ++a) hidden[rows[a]][i] = states[a];
    progress_.advance(ids.size() * rows.size());
  }

  void run_decode(std::size_t begin, std::size_t end, std::vector<std::vector<at::Tensor>>& hidden) {
    std::vector<const Sequence*> sequences;
    for (std::size_t s = begin; s < end; ++s) sequences.push_back(&set_.sequences[s]);
    for (std::size_t r = 0; r < result_.scored.size(); ++r) {
      if (result_.scored[r].path != "decode") continue;
      PagedAttention attention(*result_.scored[r].method, decoder_.config(), decoder_.options().device);
      hidden[r] = decode_hidden(decoder_, sequences, attention,
                                [this](std::int64_t tokens) { progress_.advance(static_cast<std::uint64_t>(tokens)); });
    }
  }

  // Calls body(from, rows, targets, where) for blocks of scored positions of sequence s.
  template <typename Body>
  void for_each_block(std::size_t s, const Body& body) const {
    const Sequence& ids = set_.sequences[s];
    const std::int64_t last = std::ssize(ids) - 1;  // positions below it predict a token
    const std::int64_t step = rows_per_block(decoder_.config().vocabulary);
    for (std::int64_t from = options_.first_position; from < last; from += step) {
      stop_if_interrupted();
      const std::int64_t rows = std::min(step, last - from);
      body(from, rows,
           std::span<const std::int32_t>(ids).subspan(static_cast<std::size_t>(from) + 1,
                                                      static_cast<std::size_t>(rows)),
           "sequence " + std::to_string(s) + ", positions " + std::to_string(from) + " to " +
               std::to_string(from + rows - 1));
    }
  }

  void score_sequence(std::size_t s, const at::Tensor& baseline, const std::vector<at::Tensor>& hidden) {
    for (ScoredMethod& scored : result_.scored) scored.scores.push_back({options_.first_position, {}, {}, {}, {}});
    for (auto& path : paths_) path.push_back({options_.first_position, {}, {}, {}, {}});
    for_each_block(
        s, [&](std::int64_t from, std::int64_t rows, std::span<const std::int32_t> targets, const std::string& where) {
          const BaselineRows base(decoder_.logits(baseline.narrow(0, from, rows)), targets, where);
          at::Tensor prefill_logits;
          std::size_t method = 0;
          for (std::size_t r = 0; r < hidden.size(); ++r) {
            const ScoredMethod& scored = result_.scored[r];
            const std::string name = scored.method->id + " (" + scored.path + ")";
            const at::Tensor logits = decoder_.logits(hidden[r].narrow(0, from, rows));
            base.score(logits, name, result_.scored[r].scores.back());
            if (paths_.empty()) continue;
            if (scored.path == "prefill") {
              prefill_logits = logits;
            } else {
              BaselineRows(prefill_logits, targets, where).score(logits, name, paths_[method++].back());
            }
          }
          result_.tokens += rows;
        });
  }

  Decoder& decoder_;
  const std::vector<const KvMethod*>& methods_;
  const KvMethod& baseline_;
  const SequenceSet& set_;
  const RunnerOptions& options_;
  Progress progress_;
  std::size_t paged_ = 0;  // methods with pages for the decode path
  std::vector<ProbedMethod> probed_;
  std::vector<std::vector<SequenceScores>> paths_;  // [methods with pages][sequences], prefill as baseline of decode
  RunnerResult result_;
};

}  // namespace

RunnerResult run_methods(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                         const SequenceSet& set, const RunnerOptions& options) {
  return Runner(decoder, methods, baseline, set, options).run();
}

}  // namespace oscar
