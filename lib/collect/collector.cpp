#include "collect/collector.h"

#include <ATen/ATen.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/formatted.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "collect/collect_phases.h"
#include "collect/collect_ranks.h"
#include "collect/finished_layers.h"
#include "collect/hidden_states.h"
#include "collect/moment_observer.h"
#include "collect/run_record.h"
#include "collect/state_check.h"
#include "collect/step_checks.h"
#include "model/carried_rows.h"
#include "model/decoder.h"

namespace oscar {
namespace {

// Tokens read back at once in the second pass: as many as fit a CPU cache; on a GPU, which already holds them, a full
// chunk.
constexpr std::int64_t kEnergyRows = 4096, kGpuEnergyRows = kGpuChunkRows;
constexpr std::size_t kStepsToTrim = 16;  // steps between two trims of the heap
constexpr double kDiskRate = 1e9;         // assumed write speed of a disk in bytes per second

class Collector {
 public:
  Collector(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
            const CollectOptions& options, const std::string& fingerprint, WorkDirectory& work)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        prompts_(prompts),
        plan_(plan),
        options_(options),
        fingerprint_(fingerprint),
        work_(work),
        checks_(prompts, plan, options.device, options.timeline),
        finished_(work, options.device, options.timeline) {
    std::vector<SampledSequence> sequences;
    for (const Piece& piece : plan.pieces) sequences.push_back({piece.sequence, piece.length});
    sample_ = sample_sequences(options.seed, prompts.sha256, sequences, options.rows);
  }

  CollectReport run() {
    const double start = steady_seconds();
    std::optional<ResumePoint> point = work_.load_point();
    if (point) check_resume_point(*point, state_facts(), config_, work_);
    report_.resumed = point.has_value();
    if (point) embedding_energy_ = point->embedding_energy;
    if (!point || point->layer < config_.layers) run_layers(point);
    write_statistics();
    report_.seconds = steady_seconds() - start;
    return report_;
  }

 private:
  Statistics header() const {
    return statistics_header(checkpoint_, fingerprint_, prompts_, plan_, options_,
                             static_cast<std::int64_t>(sample_.size()));
  }

  // The facts that state files must match.
  StateFacts state_facts() const {
    StateFacts run;
    run.facts = header();
    for (const SampledToken& token : sample_) {
      run.row_priority.push_back(token.priority);
      run.row_position.push_back(token.position);
    }
    run.far_pairs = options_.far.enabled;
    return run;
  }

  void run_layers(const std::optional<ResumePoint>& point) {
    load_weights();
    const std::int64_t first = point ? point->layer : 0;
    std::optional<Timeline::Phase> opening(std::in_place, timeline(), phase::kSpool);
    keep_states(point ? std::make_unique<HiddenStates>(work_, states_shape(), *point)
                      : std::make_unique<HiddenStates>(work_, states_shape()));
    if (point) saved_layer_ = first;
    keys_values_ = std::make_unique<MirroredSpool>(work_.file("kv.bin"), plan_.tokens,
                                                   std::vector<std::int64_t>{2 * config_.kv_heads, config_.head_dim},
                                                   options_.dtype, options_.device);
    opening.reset();
    opening.emplace(timeline(), phase::kMoments);
    FullAttention attention;
    MomentObserver observer(attention, config_, prompts_, plan_, sample_, options_.far, options_.device, timeline());
    opening.reset();

    if (!point) embed();
    progress_ = std::make_unique<Progress>("collect", plan_.tokens * (config_.layers - first), "layer-tokens");
    for (std::int64_t layer = first; layer < config_.layers; ++layer) run_layer(layer, observer);
    progress_->finish();
    progress_.reset();
    const Timeline::Phase weights(timeline(), phase::kWeights);
    decoder_.reset();  // its weights are no longer needed
  }

  Timeline* timeline() const { return options_.timeline; }

  void load_weights() {
    const Timeline::Phase weights(timeline(), phase::kWeights);
    finished_.begin(config_, options_.far, options_.dtype);
    decoder_ = std::make_unique<Decoder>(
        checkpoint_,
        DecoderOptions{.dtype = options_.dtype, .device = options_.device, .stream_layers = true, .prefetch = true});
  }

  void begin_layer(std::int64_t layer, MomentObserver& observer) {
    const at::Tensor out = attention_out_weight(layer);
    const Timeline::Phase moments(timeline(), phase::kMoments);
    observer.begin_layer(out);
  }

  at::Tensor attention_out_weight(std::int64_t layer) {
    const Timeline::Phase weights(timeline(), phase::kWeights);  // streamed layers are loaded here
    return decoder_->attention_out_weight(layer);
  }

  HiddenStates::Shape states_shape() const {
    HiddenStates::Shape shape{plan_.tokens, config_.state_width(), options_.dtype, options_.device, false};
    const std::uint64_t bytes = c10::elementSize(shape.dtype) * static_cast<std::uint64_t>(shape.rows * shape.hidden);
    shape.held = options_.hold_states || (shape.device.is_cuda() && bytes <= kMostMirrorBytes);
    return shape;
  }

  // Finished layers are written together with the states. If states are in memory, that is when the run's state is
  // saved.
  void keep_states(std::unique_ptr<HiddenStates> states) {
    hidden_ = std::move(states);
    finished_.defer(hidden_->held());
  }
  void begin_states(std::int64_t layer) {
    const Timeline::Phase opening(timeline(), phase::kSpool);
    hidden_->begin(layer);
  }
  at::Tensor read_states(std::int64_t layer, const Step& step) const {
    const Timeline::Phase reading(timeline(), phase::kSpool);
    return hidden_->read(layer, step.position, step.tokens);
  }
  void write_states(std::int64_t layer, const Step& step, const at::Tensor& rows) {
    const Timeline::Phase writing(timeline(), phase::kSpool);
    hidden_->write(layer, step.position, rows);
  }
  void sync_states(std::int64_t layer) {
    const Timeline::Phase syncing(timeline(), phase::kSync);
    hidden_->save(layer);
  }
  at::Tensor read_keys_values(std::int64_t first, std::int64_t count) const {
    const Timeline::Phase reading(timeline(), phase::kSpool);
    return keys_values_->read(first, count);
  }

  void embed() {
    const Timeline::Phase forward(timeline(), phase::kForward);
    double energy = 0;
    begin_states(0);
    for (const Step& step : plan_.steps) {
      const at::Tensor hidden = decoder_->embed(step_ids(prompts_, plan_, step));
      energy += checks_.energy_of(checks_.shown_by(hidden_of(config_, hidden), step, "the embedding"));
      write_states(0, step, hidden);
      if (interrupt_requested()) throw interrupted();
    }
    embedding_energy_ = energy_tensor(energy);
    if (!finished_.deferred()) save_start(0);
  }

  void run_layer(std::int64_t layer, MomentObserver& observer) {
    begin_states(layer + 1);
    const bool observed = config_.holds_kv(layer);  // a layer without a KV cache only passes its states on
    if (observed) begin_layer(layer, observer);
    checks_.begin_layer();
    const double start = steady_seconds();
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const Step& step = plan_.steps[i];
      if (observed) observer.begin_step(step, *keys_values_);
      const at::Tensor next = forward_step(layer, step, read_states(layer, step), observer);
      if (layer + 1 == config_.layers && i == 0 && is_first_rank(options_.ranks)) check_predictions(step, next);
      checks_.check_later(checks_.shown_by(hidden_of(config_, next), step, "layer " + std::to_string(layer)), observer);
      write_states(layer + 1, step, next);
      progress_->set_note("layer " + std::to_string(layer + 1) + "/" + std::to_string(config_.layers));
      progress_->advance(static_cast<std::uint64_t>(step.tokens));
      const bool stop = interrupt_requested();
      if ((stop || due()) && saved_layer_ != layer) save_start(layer);
      if (stop) throw interrupted();
      // Activations of a step leave holes between small blocks that stay allocated. glibc keeps these holes, more with
      // every step, unless malloc_trim() returns them.
      if (i % kStepsToTrim == kStepsToTrim - 1) malloc_trim(0);
      if (options_.after_step) options_.after_step();
    }
    checks_.check_behind(observer);
    const double speed = static_cast<double>(plan_.tokens) / std::max(steady_seconds() - start, 1e-9);
    log_detail(formatted("layer %3lld/%lld %9.0f tokens/s", static_cast<long long>(layer + 1),
                         static_cast<long long>(config_.layers), speed));
    if (observed) finished_.add(layer, finished_moments(layer, observer));
    if (!finished_.deferred() || due()) save_start(layer + 1);
  }

  // Checks the first sequence of the first step, as it leaves the last layer.
  void check_predictions(const Step& step, const at::Tensor& states) {
    const Timeline::Phase forward(timeline(), phase::kForward);
    std::vector<std::int32_t> ids = step_ids(prompts_, plan_, step);
    const std::int64_t length = batch_of(plan_, step).lengths.front();
    ids.resize(static_cast<std::size_t>(std::min(length, kLossTokens + 1)));
    const auto count = std::ssize(ids);
    const LossCheck check = check_loss(checkpoint_, decoder_->final_norm(states.narrow(0, 0, count)), ids);
    const std::string fault = loss_fault(check, config_.vocabulary);
    if (!fault.empty()) log_warning(fault);
  }

  at::Tensor forward_step(std::int64_t layer, const Step& step, const at::Tensor& hidden, MomentObserver& observer) {
    const Timeline::Phase forward(timeline(), phase::kForward);
    return decoder_->run_layer(layer, hidden, batch_of(plan_, step), observer);
  }

  // Writing a checkpoint, which writes what is only in memory, may take a fifth of the time.
  bool due() const {
    const double writing = static_cast<double>(hidden_->unsaved_bytes()) / kDiskRate;
    return steady_seconds() - saved_ >= std::max(options_.checkpoint_seconds, 4 * writing);
  }

  // Saves the state at the start of `layer`, from which a run goes on. After the last layer nothing reads hidden
  // states.
  void save_start(std::int64_t layer) {
    if (layer < config_.layers) sync_states(layer);
    finished_.save();
    const Timeline::Phase saving(timeline(), phase::kSaving);
    ResumePoint point{layer, embedding_energy_, {}, {}};
    if (layer < config_.layers) point.entering = hidden_->saved_sum(layer);
    work_.save_point(point);
    hidden_->saved_state(layer);
    saved_ = steady_seconds(), saved_layer_ = layer;
  }

  // The observer's sums, plus energy and W_O; all on the device.
  LayerMoments finished_moments(std::int64_t layer, const MomentObserver& observer) {
    const Timeline::Phase finishing(timeline(), phase::kMoments);
    LayerMoments moments;
    observer.finish_layer(moments);
    EnergyAccumulator weighted(moments.q_gram, options_.device);
    const std::int64_t step = options_.device.is_cuda() ? kGpuEnergyRows : kEnergyRows;
    for (std::int64_t t = 0; t < plan_.tokens; t += step) {
      const at::Tensor rows = read_keys_values(t, std::min(step, plan_.tokens - t));
      weighted.add(rows.narrow(1, 0, config_.kv_heads), rows.narrow(1, config_.kv_heads, config_.kv_heads));
    }
    moments.energy_gram = weighted.energy_gram();
    const at::Tensor out = decoder_->attention_out_weight(layer);
    moments.wo_gram = output_projection_gram(out, config_.kv_heads, config_.head_dim);
    moments.residual_energy = energy_tensor(checks_.energy());
    return moments;
  }

  at::Tensor energy_tensor(double energy) const {
    return at::tensor({energy, static_cast<double>(plan_.tokens)}, at::kDouble);
  }

  InterruptedError interrupted() const { return interrupted_run(options_); }

  void write_statistics() {
    finished_.wait();
    const Timeline::Phase saving(timeline(), phase::kSaving);
    Statistics s = header();
    if (!embedding_energy_.defined()) embedding_energy_ = work_.load_point()->embedding_energy;
    s.embedding_energy = embedding_energy_;
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      if (!config_.holds_kv(layer)) continue;
      LayerMoments moments = finished_.take(layer);
      moments.row_priority.clear(), moments.row_position.clear();
      for (const SampledToken& token : sample_) {
        moments.row_priority.push_back(token.priority);
        moments.row_position.push_back(token.position);
      }
      s.layers.push_back(std::move(moments));
    }
    drop_empty_far_pairs(s);
    report_.far_queries = far_queries(s);
    if (options_.ranks == nullptr) {
      save_statistics(s, options_.output);
    } else {
      const std::optional<Statistics> whole = merge_ranks(options_, work_, std::move(s));
      if (whole) report_.far_queries = far_queries(*whole);
    }
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const PromptSet& prompts_;
  const TokenPlan& plan_;
  const CollectOptions& options_;
  const std::string& fingerprint_;
  WorkDirectory& work_;
  std::vector<SampledToken> sample_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<HiddenStates> hidden_;
  std::unique_ptr<MirroredSpool> keys_values_;
  std::unique_ptr<Progress> progress_;
  at::Tensor embedding_energy_;
  StepChecks checks_;
  double saved_ = steady_seconds();
  std::int64_t saved_layer_ = -1;  // layer at whose start the saved state continues; -1: none
  CollectReport report_;
  // Deferred if hidden states are in memory: a state is then saved when it is due. The last member: its thread uses the
  // others.
  FinishedLayers finished_;
};

}  // namespace

InterruptedError interrupted_run(const CollectOptions& options) {
  return InterruptedError("interrupted; the state is saved in " + run_directory_of(options).string() +
                              ". Resume with: " + options.resume_command,
                          true);
}

CollectReport run_collector(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                            const CollectOptions& options, const std::string& fingerprint, WorkDirectory& work) {
  return Collector(checkpoint, prompts, plan, options, fingerprint, work).run();
}

}  // namespace oscar
