#include "curves/measure_curves.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/run_directory.h"
#include "curves/choose_profiles.h"
#include "curves/curve_passes.h"
#include "model/device_memory.h"

namespace oscar {
namespace {

constexpr const char* kPoints = "points.json";

const char* dtype_name_of(at::ScalarType dtype) { return dtype == at::kFloat ? "float32" : "bfloat16"; }

// Which side a place is: layer by layer, keys before values.
Side side_of(std::size_t place) { return place % 2 == 0 ? Side::kKey : Side::kValue; }

// The batches that are done: profiles of one place in one round, with the KL of each sequence.
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
                  {"windows", std::to_string(facts.sink) + "," + std::to_string(facts.recent)},
                  {"dtype", facts.dtype},
                  {"device", device.is_cpu() ? "cpu" : "cuda"}}}};
    run_.emplace(request.work_dir, run, request.resume,
                 RunInputs{{"model", "is of another model (its fingerprint differs)"},
                           {"text", "has another text"},
                           {"statistics", "measures other statistics"}},
                 [](const std::string& name) { return name == kPoints; });
    if (run_->threads() != at::get_num_threads()) {
      log_info("using " + std::to_string(run_->threads()) + " threads, as the run was started with");
      at::set_num_threads(run_->threads());
    }
    if (!fs::exists(run_->file(kPoints))) return;
    const std::string where = run_->file(kPoints).string();
    const Json found = read_json(run_->file(kPoints));
    run_->require_own(json_string(found, "run", where), where);
    for (const Json& batch : json_array(found, "batches", where)) batches_.push_back(read_batch(batch, where));
    if (!batches_.empty()) log_info(where + ": " + std::to_string(batches_.size()) + " batches are taken from it");
  }

  // Deals with batches in the order in which a run without interruption makes them.
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
    for (const Batch& b : batches_) {
      list.push_back({{"round", b.round}, {"place", b.place}, {"kl", b.result.kl}, {"rounding", b.result.rounding}});
    }
    write_file_atomic(run_->file(kPoints), dump_json(Json{{"run", run_->run_id()}, {"batches", std::move(list)}}));
  }

  void remove() {
    if (run_) run_->remove();
  }
  bool kept() const { return run_.has_value(); }

 private:
  struct Batch {
    std::size_t round, place;
    PassResult result;
  };

  static std::vector<double> read_numbers(const Json& json, const std::string& where) {
    std::vector<double> numbers;
    for (const Json& value : json) {
      if (!value.is_number()) throw InputError(where + ": is damaged; delete the directory to start anew");
      numbers.push_back(value.get<double>());
    }
    return numbers;
  }

  static Batch read_batch(const Json& json, const std::string& where) {
    Batch batch{static_cast<std::size_t>(json_int(json, "round", where)),
                static_cast<std::size_t>(json_int(json, "place", where)),
                {{}, read_numbers(json_array(json, "rounding", where), where)}};
    for (const Json& kl : json_array(json, "kl", where)) batch.result.kl.push_back(read_numbers(kl, where));
    return batch;
  }

  std::optional<RunDirectory> run_;
  std::vector<Batch> batches_;
};

class CurveRun {
 public:
  CurveRun(Curves facts, const Bundle& bundle, const ProfilePredictions& predictions, Decoder& decoder,
           const CurveRequest& request)
      : curves_(std::move(facts)),
        decoder_(decoder),
        request_(request),
        windows_{request.windows.sink, request.windows.recent, 1},
        methods_(make_width_methods(bundle, decoder.config(), windows_)),
        progress_("curves", most_curve_passes(decoder.config().layers, std::ssize(request.sequences)), "passes") {
    const ModelConfig& model = decoder.config();
    curves_.head_dim = model.head_dim;
    curves_.sink = request.windows.sink;
    curves_.recent = request.windows.recent;
    curves_.context = std::ssize(request.sequences.front());
    curves_.sequences = std::ssize(request.sequences);
    curves_.dtype = dtype_name_of(decoder.options().dtype);
    for (std::size_t layer = 0; layer < predictions.key.size(); ++layer) {
      for (const auto* side : {&predictions.key[layer], &predictions.value[layer]}) {
        sides_.push_back({*side, std::vector<std::optional<double>>(side->size())});
        curves_.curves.push_back({static_cast<std::int64_t>(layer), side_of(curves_.curves.size()), {}});
      }
    }
    // No pass has more profiles than the first round.
    require_memory(decoder.options().device,
                   CurvePasses::memory_bytes(model, decoder.options(), curves_.sequences, curves_.context, kAnchors),
                   "pass fewer --curve-sequences or a shorter --curve-context");
  }

  Curves run() {
    PointLog log(curves_, request_, decoder_.options().device);
    try {
      for (std::size_t round = 0;; ++round) {
        const auto next = next_profiles(sides_, static_cast<int>(curves_.head_dim), choice_);
        const bool done = std::all_of(next.begin(), next.end(), [](const auto& list) { return list.empty(); });
        if (done) break;
        for (std::size_t place = 0; place < next.size(); ++place) measure_batch(log, round, place, next[place]);
      }
    } catch (const InterruptedError&) {
      throw InterruptedError(log.kept()
                                 ? "interrupted; the curves so far are in " + request_.work_dir.string() +
                                       ". Resume with: " + request_.resume_command
                                 : std::string("interrupted; with --work-dir DIR the curves could be continued"));
    }
    progress_.finish();
    finish();
    log.remove();
    return std::move(curves_);
  }

 private:
  void measure_batch(PointLog& log, std::size_t round, std::size_t place, const std::vector<std::size_t>& wanted) {
    if (wanted.empty()) return;
    SideCurve& curve = curves_.curves[place];
    std::vector<Widths> profiles;
    for (const std::size_t i : wanted) profiles.push_back(falling_profiles()[i]);
    progress_.set_note("layer " + std::to_string(curve.layer) + (curve.side == Side::kKey ? " keys" : " values"));
    std::optional<PassResult> result = log.find(round, place);
    if (result) {
      progress_.advance(static_cast<std::uint64_t>((decoder_.config().layers - curve.layer) * curves_.sequences) *
                        profiles.size());
    } else {
      result = passes().measure(methods_, curve.layer, curve.side, profiles);
      log.add(round, place, *result);
    }
    const auto whole = [&](const std::vector<double>& kl) { return std::ssize(kl) == curves_.sequences; };
    if (result->kl.size() != profiles.size() || !std::all_of(result->kl.begin(), result->kl.end(), whole)) {
      throw InputError("the work directory holds other batches than this run makes; delete it to start anew");
    }
    for (std::size_t p = 0; p < profiles.size(); ++p) {
      curve.points.push_back(curve_point(profiles[p], result->kl[p]));
      sides_[place].measured[wanted[p]] = curve.points.back().kl;
    }
    for (const double kl : result->rounding) rounding_ += kl, ++rounded_;
  }

  CurvePasses& passes() {
    if (!passes_) {
      passes_.emplace(decoder_, request_.sequences, windows_, [this](std::uint64_t n) { progress_.advance(n); });
    }
    return *passes_;
  }

  void finish() {
    for (SideCurve& curve : curves_.curves) {
      std::stable_sort(curve.points.begin(), curve.points.end(), [&](const CurvePoint& a, const CurvePoint& b) {
        const auto bits = [&](const CurvePoint& p) {
          return profile_bits(p.widths, static_cast<int>(curves_.head_dim));
        };
        return bits(a) != bits(b) ? bits(a) < bits(b) : a.widths < b.widths;
      });
    }
    curves_.rounding_kl = rounded_ > 0 ? rounding_ / static_cast<double>(rounded_) : 0.0;
  }

  Curves curves_;
  Decoder& decoder_;
  const CurveRequest& request_;
  WindowPolicy windows_;
  WidthMethods methods_;
  Progress progress_;
  ChoiceOptions choice_;
  std::vector<SideKnowledge> sides_;
  std::optional<CurvePasses> passes_;
  double rounding_ = 0.0;
  std::int64_t rounded_ = 0;
};

}  // namespace

Curves measure_curves(Curves facts, const Bundle& bundle, const ProfilePredictions& predictions, Decoder& decoder,
                      const CurveRequest& request) {
  return CurveRun(std::move(facts), bundle, predictions, decoder, request).run();
}

std::uint64_t most_curve_passes(std::int64_t layers, std::int64_t sequences) {
  const auto most = static_cast<std::int64_t>(ChoiceOptions{}.most);
  return static_cast<std::uint64_t>(sequences * (layers + most * layers * (layers + 1)));  // two sides of (L (L + 1))/2
}

}  // namespace oscar
