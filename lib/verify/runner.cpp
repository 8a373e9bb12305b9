#include "verify/runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/log.h"
#include "base/progress.h"
#include "model/background_jobs.h"
#include "verify/forward.h"
#include "verify/probe.h"
#include "verify/score_store.h"
#include "verify/sequence_scorer.h"
#include "verify/verify_phases.h"
#include "verify/verify_work.h"

namespace oscar {
namespace {

using Sequence = std::vector<std::int32_t>;

// Keys and values of layers that wait for a page check, per checking thread.
constexpr std::uint64_t kMostWaiting = std::uint64_t{1} << 30;
constexpr std::size_t kCheckThreads = 6;  // layers in alternation; a check consists mostly of small dependent steps

class Runner {
 public:
  Runner(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
         const SequenceSet& set, const RunnerOptions& options)
      : decoder_(decoder),
        methods_(methods),
        baseline_(baseline),
        set_(set),
        options_(options),
        layout_(score_layout()),
        owners_(deal_groups(layout_, options.layer_sequences, options.ranks == nullptr ? 1 : options.ranks->count())),
        scorer_(decoder, set, options.first_position, options.timeline),
        progress_("verify", planned_tokens(), "tokens") {
    for (const KvMethod* m : methods) {
      probed_.emplace_back(*m, decoder.config(), decoder.options().device, options.timeline, kCheckThreads);
      if (options.prefill) result_.scored.push_back({m, "prefill"});
      if (!options.decode || !m->paged()) continue;
      result_.scored.push_back({m, "decode"});
      ++paged_;
    }
    paths_ = options.prefill && options.decode && !only_last() ? paged_ : 0;
    const at::Device device = decoder.options().device;
    const std::size_t threads = options.background_checks || device.is_cuda() ? kCheckThreads : 0;
    for (std::size_t i = 0; i < threads; ++i) checks_.emplace_back(device, kMostWaiting);
  }

  RunnerResult run() {
    result_.scores = ScoreStore(options_.work, layout_);
    const std::vector<std::size_t> own = own_groups();
    for (std::size_t i = resume(own); i < own.size(); ++i) {
      const std::size_t begin = own[i] * layout_.group;
      result_.scores.resume(own[i]);
      run_group(begin, std::min(begin + layout_.group, set_.sequences.size()));
    }
    progress_.finish();
    result_.scores.resume(owners_.size());
    if (options_.ranks != nullptr) {
      const Timeline::Phase gathering(options_.timeline, verify_phase::kRanks);
      gather_groups(*options_.ranks, *options_.work, layout_, owners_, result_.scored.size() + paths_);
      if (!options_.ranks->is_first()) return std::move(result_);
      result_.tokens = layout_.before_group(owners_.size());
    }
    for (ProbedMethod& p : probed_) {
      result_.layers.push_back(p.layers());
      result_.caches.push_back(p.check);
    }
    for (std::size_t i = 0; i < paths_; ++i) {
      result_.path_difference.push_back(summarize(result_.scores.row(result_.scored.size() + i), {0, 0.95, 0}).kl);
    }
    return std::move(result_);
  }

 private:
  // Tokens through a forward pass: the unit of the progress bar.
  std::uint64_t planned_tokens() const {
    const auto tokens = static_cast<std::uint64_t>(own_sequences()) * static_cast<std::uint64_t>(set_.context);
    std::uint64_t passes = 1, decoded = 0;
    for (const KvMethod* m : methods_) {
      decoded += options_.decode && m->paged() ? 1 : 0;
      passes += (options_.prefill && m->quantized ? 1 : 0) + (only_last() && m->paged() ? 1 : 0);
    }
    const std::uint64_t decoded_tokens =
        only_last() ? own_sequences() * static_cast<std::uint64_t>(set_.context - tail_begin()) : tokens;
    return tokens * passes + decoded_tokens * decoded +
           (is_first() ? static_cast<std::uint64_t>(set_.context) : 0);  // including the null run
  }

  // Whether the decode path starts inside a sequence, and where.
  bool only_last() const { return options_.decode && options_.decode_last > 0; }
  std::int64_t tail_begin() const { return std::max<std::int64_t>(set_.context - options_.decode_last, 0); }

  bool streams() const { return decoder_.options().stream_layers; }

  bool is_first() const { return is_first_rank(options_.ranks); }

  // The groups that this process scores; without ranks, all of them.
  std::vector<std::size_t> own_groups() const {
    std::vector<std::size_t> own;
    for (std::size_t g = 0; g < owners_.size(); ++g) {
      if (is_first() ? owners_[g] == 0 : owners_[g] == options_.ranks->rank()) own.push_back(g);
    }
    return own;
  }

  std::size_t own_sequences() const {
    std::size_t count = 0;
    for (const std::size_t g : own_groups()) count += layout_.of_group(g).size();
    return count;
  }

  // Positions first_position .. T - 2 of each sequence.
  ScoreLayout score_layout() const {
    const std::int64_t group = options_.decode && !only_last() ? options_.decode_batch
                               : streams()                     ? options_.streamed_batch
                                                               : 1;
    ScoreLayout layout{options_.first_position, {}, static_cast<std::size_t>(group)};
    for (const Sequence& ids : set_.sequences) {
      layout.tokens.push_back(std::max<std::int64_t>(std::ssize(ids) - 1 - options_.first_position, 0));
    }
    return layout;
  }

  // Returns how many of these groups an earlier run has finished, and restores its sums. Checks all records now, so
  // that damage shows at the start.
  std::size_t resume(const std::vector<std::size_t>& own) {
    if (options_.work == nullptr) return 0;
    std::size_t groups = 0, sequences = 0;
    std::int64_t tokens = 0;
    std::optional<WorkRecord> last;
    for (; groups < own.size(); ++groups) {
      std::optional<WorkRecord> next = options_.work->load(group_name(own[groups]));
      if (!next) break;
      const std::string where = options_.work->file(group_name(own[groups])).string();
      const std::span<const std::int64_t> scored = layout_.of_group(own[groups]);
      for (std::size_t r = 0; r < result_.scored.size() + paths_; ++r) {
        read_scores(*next, where, r, layout_.first_position, scored);
      }
      last = std::move(next);
      tokens += std::accumulate(scored.begin(), scored.end(), std::int64_t{0});
      sequences += scored.size();
    }
    if (!last) return 0;
    restore_sums(*last, options_.work->file(group_name(own[groups - 1])).string(), tokens);
    const std::size_t all = own_sequences();
    progress_.advance(planned_tokens() * sequences / all);
    log_info("continuing: " + std::to_string(sequences) + " of " + std::to_string(all) + " sequences were done");
    return groups;
  }

  // Sums over the sequences so far: layer errors, cache checks, the null run.
  WorkRecord sums() const {
    WorkRecord record;
    for (std::size_t m = 0; m < probed_.size(); ++m) record["probe" + std::to_string(m)] = probed_[m].state();
    record["null"] = {result_.null_kl, static_cast<double>(result_.null_tokens), static_cast<double>(result_.tokens)};
    return record;
  }

  // tokens: number scored before these sums were saved.
  void restore_sums(const WorkRecord& record, const std::string& where, std::int64_t tokens) {
    const std::vector<double>& null = record_list(record, where, "null", 3);
    const auto null_tokens = is_first() ? layout_.tokens.front() : 0;
    require_score(null[0], 0.0, where);
    if (null[1] != static_cast<double>(null_tokens) || null[2] != static_cast<double>(tokens)) {
      damaged_run(where, "the sums are not those of " + std::to_string(tokens) + " scored tokens");
    }
    for (std::size_t m = 0; m < probed_.size(); ++m) {
      probed_[m].restore(record_list(record, where, "probe" + std::to_string(m)), decoder_.config().kv_heads, where);
    }
    result_.null_kl = null[0];
    result_.null_tokens = null_tokens;
    result_.tokens = tokens;
  }

  // One pass of a sequence through the layers, for the baseline or a row of result_.scored.
  struct Pass {
    std::size_t sequence = 0;
    std::string phase;
    bool probes = false;                                // adds to the sums over sequences
    std::shared_ptr<PagedAttention> cache;              // cache that the pass fills, if any
    std::vector<std::unique_ptr<Attention>> attention;  // the last one runs and may use the previous one
    std::function<void(const at::Tensor& hidden)> done;
  };

  // Hidden states of sequences [begin, end) for the baseline and each row of result_.scored, then their scores.
  void run_group(std::size_t begin, std::size_t end) {
    const std::size_t count = end - begin;
    std::vector<at::Tensor> baseline(count);
    std::vector<std::vector<at::Tensor>> hidden(result_.scored.size(), std::vector<at::Tensor>(count));
    std::vector<Pass> passes;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t s = begin + i;
      plan_baseline(s, baseline[i], passes);
      for (std::size_t r = 0; r < hidden.size(); ++r) {
        if (result_.scored[r].path == "prefill") {
          if (result_.scored[r].method->quantized) plan_prefill(s, r, hidden[r][i], passes);
        } else if (only_last()) {
          plan_tail(s, r, hidden[r][i], passes);
        }
      }
    }
    run_passes(passes);
    for (std::size_t r = 0; r < hidden.size(); ++r) {
      if (result_.scored[r].path == "prefill" && !result_.scored[r].method->quantized) hidden[r] = baseline;
    }
    if (options_.decode && !only_last()) run_decode(begin, end, hidden);
    score_group(begin, baseline, hidden);
  }

  void score_group(std::size_t begin, const std::vector<at::Tensor>& baseline,
                   const std::vector<std::vector<at::Tensor>>& hidden) {
    std::vector<std::vector<SequenceScores>> scores(result_.scored.size() + paths_);
    for (std::size_t i = 0; i < baseline.size(); ++i) {
      std::vector<at::Tensor> rows;
      for (const auto& h : hidden) rows.push_back(h[i]);
      result_.tokens += scorer_.score(begin + i, baseline[i], rows, result_.scored, scores);
    }
    const Timeline::Phase saving(options_.timeline, verify_phase::kSaving);
    result_.scores.add_group(scores, sums());
  }

  // Runs passes one after another. With streamed layers, all run together.
  void run_passes(std::vector<Pass>& passes) {
    const std::size_t together = streams() ? passes.size() : 1;
    for (std::size_t first = 0; first < passes.size(); first += together) {
      const std::span<Pass> some(&passes[first], std::min(together, passes.size() - first));
      const bool adds = std::any_of(some.begin(), some.end(), [](const Pass& pass) { return pass.probes; });
      if (adds) finish_checks();
      std::vector<PrefillRun> runs;
      std::uint64_t tokens = 0, told = 0;
      for (Pass& pass : some) {
        const Sequence& ids = set_.sequences[pass.sequence];
        runs.push_back({&ids, pass.attention.back().get(), pass.phase});
        tokens += ids.size();
      }
      const auto layers = static_cast<std::uint64_t>(decoder_.config().layers);
      const auto advance = [&](std::int64_t done) {
        const std::uint64_t now = tokens * static_cast<std::uint64_t>(done) / layers;
        progress_.advance(now - told);
        told = now;
      };
      const std::vector<at::Tensor> states = prefill_hidden(decoder_, runs, options_.timeline, advance);
      for (std::size_t i = 0; i < some.size(); ++i) {
        some[i].done(states[i]);
        some[i] = {};
      }
    }
    finish_checks();
  }

  // Waits for the check of the first sequence's pages, which runs in parallel with the passes of its rows. This must
  // happen before the sums include another sequence.
  void finish_checks() {
    if (!std::exchange(checking_, false)) return;
    const Timeline::Phase checking(options_.timeline, verify_phase::kChecks);
    for (BackgroundJobs& jobs : checks_) jobs.wait();
    for (ProbedMethod& p : probed_) p.finish_cache();
  }

  // The baseline, probed on the first sequences. The first sequence is run twice to measure the noise of the device.
  void plan_baseline(std::size_t s, at::Tensor& hidden, std::vector<Pass>& passes) {
    Pass pass{s, verify_phase::forward_of(baseline_), false, {}, {}, {}};
    pass.attention.push_back(std::make_unique<SimulatedPrefillAttention>(baseline_));
    if (s == 0 || static_cast<std::int64_t>(s) < options_.layer_sequences) {
      Attention& exact = *pass.attention.back();
      pass.probes = true;
      pass.attention.push_back(std::make_unique<LayerProbe>(exact, decoder_, probed_, options_.first_position,
                                                            options_.tiers, s == 0, options_.timeline,
                                                            checks_.empty() ? nullptr : &checks_));
    }
    pass.done = [&hidden](const at::Tensor& states) { hidden = states; };
    passes.push_back(std::move(pass));
    if (s > 0) return;
    Pass again{s, verify_phase::kChecks, false, {}, {}, {}};
    again.attention.push_back(std::make_unique<SimulatedPrefillAttention>(baseline_));
    again.done = [this, &hidden](const at::Tensor& states) {
      const SequenceScorer::NullRun null = scorer_.null_run(hidden, states);
      result_.null_kl = null.kl, result_.null_tokens = null.tokens;
      checking_ = true;
      if (checks_.empty()) finish_checks();
    };
    passes.push_back(std::move(again));
  }

  void plan_prefill(std::size_t s, std::size_t row, at::Tensor& hidden, std::vector<Pass>& passes) {
    const KvMethod& method = *result_.scored[row].method;
    Pass pass{s, verify_phase::forward_of(method), false, {}, {}, {}};
    pass.attention.push_back(std::make_unique<SimulatedPrefillAttention>(method, options_.timeline));
    pass.done = [&hidden](const at::Tensor& states) { hidden = states; };
    passes.push_back(std::move(pass));
  }

  // The last tokens of a sequence, decoded after an exact pass has filled the cache with the others: engines attend to
  // a prompt's own tokens in BF16. For earlier tokens, `hidden` has the states of that pass, which are not scored.
  void plan_tail(std::size_t s, std::size_t row, at::Tensor& hidden, std::vector<Pass>& passes) {
    const KvMethod& method = *result_.scored[row].method;
    Pass pass{s, verify_phase::forward_of(baseline_), false, {}, {}, {}};
    pass.cache = std::make_shared<PagedAttention>(method, decoder_.config(), decoder_.options().device);
    pass.attention.push_back(std::make_unique<SimulatedPrefillAttention>(baseline_));
    pass.attention.push_back(std::make_unique<CacheFiller>(*pass.attention.back(), *pass.cache, tail_begin()));
    pass.done = [this, s, &method, &hidden, cache = pass.cache](const at::Tensor& states) {
      const Timeline::Phase decoding(options_.timeline, verify_phase::decode_of(method));
      const at::Tensor tail =
          decode_tail(decoder_, set_.sequences[s], tail_begin(), *cache,
                      [this](std::int64_t tokens) { progress_.advance(static_cast<std::uint64_t>(tokens)); });
      hidden = at::cat({states.narrow(0, 0, tail_begin()), tail});
    };
    passes.push_back(std::move(pass));
  }

  void run_decode(std::size_t begin, std::size_t end, std::vector<std::vector<at::Tensor>>& hidden) {
    std::vector<const Sequence*> sequences;
    for (std::size_t s = begin; s < end; ++s) sequences.push_back(&set_.sequences[s]);
    for (std::size_t r = 0; r < result_.scored.size(); ++r) {
      if (result_.scored[r].path != "decode") continue;
      const Timeline::Phase decoding(options_.timeline, verify_phase::decode_of(*result_.scored[r].method));
      PagedAttention attention(*result_.scored[r].method, decoder_.config(), decoder_.options().device);
      attention.expect(std::ssize(sequences), set_.context);
      hidden[r] = decode_hidden(decoder_, sequences, attention,
                                [this](std::int64_t tokens) { progress_.advance(static_cast<std::uint64_t>(tokens)); });
    }
  }

  Decoder& decoder_;
  const std::vector<const KvMethod*>& methods_;
  const KvMethod& baseline_;
  const SequenceSet& set_;
  const RunnerOptions& options_;
  ScoreLayout layout_;
  std::vector<int> owners_;  // [groups] rank of each
  SequenceScorer scorer_;
  Progress progress_;
  std::size_t paged_ = 0;  // methods with pages for the decode path
  std::vector<ProbedMethod> probed_;
  std::size_t paths_ = 0;  // rows after those in result_.scored: prefill as the baseline of decode
  RunnerResult result_;
  bool checking_ = false;              // the pages of the first sequence
  std::deque<BackgroundJobs> checks_;  // destroyed before the objects that it checks
};

}  // namespace

RunnerResult run_methods(Decoder& decoder, const std::vector<const KvMethod*>& methods, const KvMethod& baseline,
                         const SequenceSet& set, const RunnerOptions& options) {
  return Runner(decoder, methods, baseline, set, options).run();
}

}  // namespace oscar
