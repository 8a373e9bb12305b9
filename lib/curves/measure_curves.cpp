#include "curves/measure_curves.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/errors.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "bundle/curve_allocation.h"
#include "bundle/target_budget.h"
#include "curves/curve_passes.h"
#include "model/device.h"
#include "transform/fixed_sides.h"
#include "transform/profile_allocation.h"

namespace oscar {
namespace {

constexpr const char* kPoints = "points.json";

// The rank that measures each piece; pieces without cost go to the first.
std::vector<std::size_t> deal_by_cost(const std::vector<std::uint64_t>& cost, int ranks) {
  std::vector<std::size_t> order(cost.size()), owners(cost.size(), 0);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cost[a] > cost[b]; });
  std::vector<std::uint64_t> load(static_cast<std::size_t>(ranks), 0);
  for (const std::size_t i : order) {
    if (cost[i] == 0) continue;
    owners[i] = static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[owners[i]] += cost[i];
  }
  return owners;
}

// The finished batches: profiles of one place in one round, with the KL of each sequence.
class PointLog {
 public:
  PointLog(const Curves& facts, const CurveRequest& request, at::Device device) {
    if (request.work_dir.empty()) return;
    Json run = {{"tool_version", request.tool_version},
                {"model", facts.model_fingerprint},
                {"text", facts.text},
                {"statistics", facts.statistics_sha256},
                {"threads", at::get_num_threads()},
                {"options",
                 {{"fit", facts.options},
                  {"curve_context", facts.context},
                  {"curve_sequences", facts.sequences},
                  {"budgets", request.budgets},
                  {"profiles", request.profiles},
                  {"one", request.one},
                  {"windows", std::to_string(facts.sink) + "," + std::to_string(facts.recent)},
                  {"dtype", facts.dtype},
                  {"device", device.is_cpu() ? "cpu" : "cuda"}}}};
    fs::path folder = request.work_dir;
    if (request.ranks != nullptr) {
      run["options"]["ranks"] = request.ranks->count();
      folder /= "rank-" + std::to_string(request.ranks->rank());
    }
    run_ = std::make_unique<RunDirectory>(folder, run, request.resume,
                                          RunInputs{{"model", "is of another model (its fingerprint differs)"},
                                                    {"text", "has another text"},
                                                    {"statistics", "measures other statistics"}},
                                          [](const std::string& name) { return name == kPoints; });
    use_threads(run_->threads(), kThreadsOfRun);
    const std::optional<Json> found = run_->load_json(kPoints);
    if (!found) return;
    const std::string where = run_->file(kPoints).string();
    for (const Json& batch : json_array(*found, "batches", where)) batches_.push_back(read_batch(batch, where));
    if (!batches_.empty()) log_info(where + ": " + std::to_string(batches_.size()) + " batches are taken from it");
  }

  // Finds batches in the order in which an uninterrupted run makes them.
  std::optional<PassResult> find(std::size_t round, std::size_t place) const {
    for (const Batch& batch : batches_) {
      if (batch.round == round && batch.place == place) return batch.result;
    }
    return std::nullopt;
  }

  void add(std::size_t round, std::size_t place, const PassResult& result) {
    if (!run_) return;
    batches_.push_back({round, place, result});
    Json list = Json::array();
    for (const Batch& b : batches_) list.push_back(batch_json(b.round, b.place, b.result));
    run_->save_json(kPoints, Json::object({{"batches", std::move(list)}}));
  }

  std::unique_ptr<RunDirectory> take_state() { return std::move(run_); }
  bool kept() const { return run_ != nullptr; }

  struct Batch {
    std::size_t round, place;
    PassResult result;
  };

  static Json batch_json(std::size_t round, std::size_t place, const PassResult& result) {
    return {{"round", round}, {"place", place}, {"kl", result.kl}, {"rounding", result.rounding}};
  }

  static Batch read_batch(const Json& json, const std::string& where) {
    Batch batch{static_cast<std::size_t>(json_int(json, "round", where)),
                static_cast<std::size_t>(json_int(json, "place", where)),
                {{}, read_scores(json_array(json, "rounding", where), -kScoreRounding, where)}};
    for (const Json& kl : json_array(json, "kl", where)) batch.result.kl.push_back(read_scores(kl, 0.0, where));
    return batch;
  }

 private:
  static std::vector<double> read_scores(const Json& json, double least, const std::string& where) {
    std::vector<double> scores;
    for (const Json& value : json) {
      if (!value.is_number()) damaged_run(where, "a score is no number");
      scores.push_back(value.get<double>());
      require_score(scores.back(), least, where);
    }
    return scores;
  }

  std::unique_ptr<RunDirectory> run_;  // null: nothing is kept
  std::vector<Batch> batches_;
};

class CurveRun {
 public:
  CurveRun(Curves facts, const Bundle& bundle, const ProfilePredictions& predictions, Decoder& decoder,
           const CurveRequest& request)
      : curves_(std::move(facts)),
        decoder_(decoder),
        request_(request),
        bundle_(bundle),
        methods_(make_width_methods(bundle, decoder.config(), request.windows)),
        progress_("curves",
                  most_curve_passes(decoder.config(), std::ssize(request.sequences),
                                    request.target_kl ? kTargetBudgets : std::ssize(request.budgets), request.profiles,
                                    request.one),
                  "passes") {
    const ModelConfig& model = decoder.config();
    choice_.most = static_cast<std::size_t>(request.profiles);
    curves_.head_dim = model.head_dim;
    curves_.latent = model.is_latent();
    curves_.sink = request.windows.sink;
    curves_.recent = request.windows.recent;
    curves_.context = std::ssize(request.sequences.front());
    curves_.sequences = std::ssize(request.sequences);
    curves_.dtype = decoder.options().dtype_name();
    for (std::size_t layer = 0; layer < predictions.key.size(); ++layer) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        if (side == Side::kValue && curves_.latent) break;
        const std::vector<double>& predicted = (side == Side::kKey ? predictions.key : predictions.value)[layer];
        sides_.push_back({predicted, {}});
        curves_.curves.push_back({static_cast<std::int64_t>(layer), side, {}, predicted});
      }
    }
    // No pass has more profiles than the first round.
    require_memory(decoder.options().device,
                   CurvePasses::memory_bytes(model, decoder.options(), curves_.sequences, curves_.context, kAnchors),
                   "pass fewer --curve-sequences or a shorter --curve-context");
    settle_on_device(request.timeline, decoder.options().device);
  }

  MeasuredCurves run() {
    PointLog log(curves_, request_, decoder_.options().device);
    try {
      for (std::size_t round = 0;; ++round) {
        const auto next = next_profiles(sides_, static_cast<int>(curves_.head_dim), choice_);
        const bool done = std::all_of(next.begin(), next.end(), [](const auto& list) { return list.empty(); });
        if (done) break;
        measure_round(log, round, next);
      }
      sort_points();
      measure_allocations(log);
    } catch (const InterruptedError&) {
      throw InterruptedError(log.kept() ? "interrupted; the curves so far are in " + request_.work_dir.string() +
                                              ". Resume with: " + request_.resume_command
                                        : std::string("interrupted; with --work-dir DIR the curves could be continued"),
                             log.kept());
    }
    progress_.finish();
    return {std::move(curves_), log.take_state()};
  }

 private:
  // A batch of a round: the wanted profiles of one place.
  void measure_round(PointLog& log, std::size_t round, const std::vector<std::vector<std::size_t>>& wanted) {
    std::vector<std::uint64_t> cost;
    for (std::size_t place = 0; place < wanted.size(); ++place) {
      const std::int64_t behind = decoder_.config().layers - curves_.curves[place].layer;
      cost.push_back(static_cast<std::uint64_t>(behind) * wanted[place].size());
    }
    const std::vector<PassResult> results = measure_shared(cost, round, 0, [&](std::size_t place) {
      return cost[place] == 0 ? PassResult{} : measure_batch(log, round, place, wanted[place]);
    });
    for (std::size_t place = 0; place < wanted.size(); ++place) {
      if (!wanted[place].empty()) keep_batch(place, wanted[place], results[place]);
    }
  }

  PassResult measure_batch(PointLog& log, std::size_t round, std::size_t place,
                           const std::vector<std::size_t>& wanted) {
    const SideCurve& curve = curves_.curves[place];
    progress_.set_note("layer " + std::to_string(curve.layer) + " " + curve_side_name(curve.side));
    if (const std::optional<PassResult> found = log.find(round, place)) {
      const std::int64_t after = decoder_.config().layers - curve.layer, profiles = std::ssize(wanted);
      progress_.advance(
          static_cast<std::uint64_t>(curves_.sequences * (request_.one ? after + profiles - 1 : after * profiles)));
      return *found;
    }
    std::vector<Widths> profiles;
    for (const std::size_t i : wanted) profiles.push_back(latent_profiles()[i]);
    const std::int64_t number = bundle_.layers.at(static_cast<std::size_t>(curve.layer)).layer;
    PassResult result =
        passes().measure(methods_, decoder_.config().kv_place(number), curve.side, profiles, request_.one);
    log.add(round, place, result);
    return result;
  }

  void keep_batch(std::size_t place, const std::vector<std::size_t>& wanted, const PassResult& result) {
    require_complete(result, wanted.size());
    SideCurve& curve = curves_.curves[place];
    for (std::size_t p = 0; p < wanted.size(); ++p) {
      curve.points.push_back(curve_point(latent_profiles()[wanted[p]], result.kl[p]));
      sides_[place].measured.push_back({wanted[p], curve.points.back().kl, curve.points.back().error});
    }
    for (const double kl : result.rounding) rounding_ += kl, ++rounded_;
  }

  // The results of all pieces. With ranks, each rank measures its own pieces: the most expensive are dealt first, each
  // to the rank with the least cost so far. The numbers do not depend on the rank that measured them.
  std::vector<PassResult> measure_shared(const std::vector<std::uint64_t>& cost, std::size_t round, std::size_t first,
                                         const std::function<PassResult(std::size_t)>& measure) {
    std::vector<PassResult> results(cost.size());
    Ranks* ranks = request_.ranks;
    const std::vector<std::size_t> owners = deal_by_cost(cost, ranks == nullptr ? 1 : ranks->count());
    const std::size_t self = ranks == nullptr ? 0 : static_cast<std::size_t>(ranks->rank());
    Json own = Json::array();
    for (std::size_t i = 0; i < cost.size(); ++i) {
      if (owners[i] != self) continue;
      results[i] = measure(i);
      if (ranks != nullptr) own.push_back(PointLog::batch_json(round, first + i, results[i]));
    }
    if (ranks == nullptr) return results;
    for (const std::string& text : ranks->all_gather(own.dump())) {
      for (const Json& batch : parse_json(text, "another rank")) {
        const PointLog::Batch found = PointLog::read_batch(batch, "another rank");
        if (found.place >= first) results.at(found.place - first) = found.result;
      }
    }
    return results;
  }

  CurvePasses& passes() {
    if (!passes_) {
      passes_.emplace(
          decoder_, request_.sequences, request_.windows, [this](std::uint64_t n) { progress_.advance(n); },
          request_.timeline);
    }
    return *passes_;
  }

  struct Allocation {
    std::size_t index;
    double bits;
    const char* from;
    CurveAllocation widths;
  };

  // Errors of sides nearly add up, but not always. So both allocations are measured end to end: the analytic one stays
  // unless the measured one has a significantly lower KL.
  void measure_allocations(PointLog& log) {
    std::vector<NumberedBudget> budgets;
    for (std::size_t i = 0; i < request_.budgets.size(); ++i) budgets.push_back({i, request_.budgets[i]});
    measure_budgets(log, budgets);
    if (!request_.target_kl) return;
    // Numbered by their place among all, so that what one target has measured serves another.
    const std::vector<double> all = target_budgets(curves_.head_dim);
    while (const std::optional<std::size_t> next = next_budget(curves_, *request_.target_kl)) {
      measure_budgets(log, {{*next, all[*next]}});
    }
    std::stable_sort(curves_.end_to_end.begin(), curves_.end_to_end.end(),
                     [](const EndToEndPoint& a, const EndToEndPoint& b) { return a.bits < b.bits; });
  }

  struct NumberedBudget {
    std::size_t index;
    double bits;
  };

  void measure_budgets(PointLog& log, const std::vector<NumberedBudget>& budgets) {
    std::vector<Allocation> allocations;
    for (const auto& [i, bits] : budgets) {
      const CurveAllocation measured = allocate_estimates(curves_, bits), analytic = allocate_analytic(curves_, bits);
      allocations.push_back({2 * i, bits, "measured", measured});
      if (analytic.key != measured.key || analytic.value != measured.value) {
        allocations.push_back({2 * i + 1, bits, "analytic", analytic});
      }
    }
    // These batches are numbered after those of the sides.
    const std::vector<PassResult> results =
        measure_shared(std::vector<std::uint64_t>(allocations.size(), 1), 0, sides_.size(),
                       [&](std::size_t i) { return measure_end_to_end(log, allocations[i]); });
    for (std::size_t i = 0; i < allocations.size(); ++i) {
      require_complete(results[i], 1);
      const CurvePoint mean = curve_point({}, results[i].kl.front());
      const CurveAllocation& widths = allocations[i].widths;
      curves_.end_to_end.push_back(
          {allocations[i].bits, allocations[i].from, widths.key, widths.value, mean.kl, mean.error, mean.sequences});
    }
  }

  PassResult measure_end_to_end(PointLog& log, const Allocation& allocation) {
    progress_.set_note("all layers at " + bits_text(allocation.bits) + " bits");
    const std::size_t place = sides_.size() + allocation.index;
    if (const std::optional<PassResult> found = log.find(0, place)) {
      progress_.advance(static_cast<std::uint64_t>(decoder_.config().layers * curves_.sequences));
      return *found;
    }
    Bundle narrow = bundle_;
    for (std::size_t l = 0; l < narrow.layers.size(); ++l) {
      set_block_widths(narrow.layers[l], allocation.widths.key[l], allocation.widths.value[l]);
    }
    const KvMethod method = make_method(narrow.method, decoder_.config(), &narrow, request_.windows);
    PassResult result{{passes().measure_end_to_end(method)}, {}};
    if (decoder_.options().narrow_products()) {
      const std::vector<double>& rounding = passes().rounding(methods_, 0);
      for (std::size_t s = 0; s < rounding.size(); ++s) result.kl[0][s] = std::max(result.kl[0][s] - rounding[s], 0.0);
    }
    log.add(0, place, result);
    return result;
  }

  // A batch in a work directory may belong to another run.
  void require_complete(const PassResult& result, std::size_t profiles) const {
    const auto complete = [&](const std::vector<double>& kl) { return std::ssize(kl) == curves_.sequences; };
    if (result.kl.size() != profiles || !std::all_of(result.kl.begin(), result.kl.end(), complete)) {
      throw InputError("the work directory holds other batches than this run makes; delete it to start anew");
    }
  }

  void sort_points() {
    for (SideCurve& curve : curves_.curves) {
      std::stable_sort(curve.points.begin(), curve.points.end(), [&](const CurvePoint& a, const CurvePoint& b) {
        const auto bits = [&](const CurvePoint& p) {
          return profile_bits(p.widths, static_cast<int>(curves_.head_dim));
        };
        return bits(a) != bits(b) ? bits(a) < bits(b) : a.widths < b.widths;
      });
    }
    // The rounding of narrow products belongs to the measurement only: a served model does not have it.
    if (rounded_ > 0 && !decoder_.options().narrow_products()) {
      curves_.rounding_kl = rounding_ / static_cast<double>(rounded_);
    }
  }

  Curves curves_;
  Decoder& decoder_;
  const CurveRequest& request_;
  const Bundle& bundle_;
  WidthMethods methods_;
  Progress progress_;
  ChoiceOptions choice_;
  std::vector<SideKnowledge> sides_;
  std::optional<CurvePasses> passes_;
  double rounding_ = 0.0;
  std::int64_t rounded_ = 0;
};

}  // namespace

MeasuredCurves measure_curves(Curves facts, const Bundle& bundle, const ProfilePredictions& predictions,
                              Decoder& decoder, const CurveRequest& request) {
  refuse_carried_rows(decoder.config(), "measuring curves");
  return CurveRun(std::move(facts), bundle, predictions, decoder, request).run();
}

std::uint64_t most_curve_passes(const ModelConfig& model, std::int64_t sequences, std::int64_t budgets,
                                std::int64_t profiles, bool one) {
  const std::int64_t layers = model.layers;
  // (L (L + 1))/2 layers for each of two sides, or that once and the coded layer of the others; two end-to-end passes
  // per budget.
  const std::int64_t both =
      one ? layers * (layers + 1) + 2 * (profiles - 1) * layers : profiles * layers * (layers + 1);
  const std::int64_t sides = model.is_latent() ? both / 2 : both;
  return static_cast<std::uint64_t>(sequences * (layers + sides + 2 * layers * budgets));
}

}  // namespace oscar
