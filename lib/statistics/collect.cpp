#include "statistics/collect.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include "base/errors.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "model/decoder.h"
#include "model/device_settle.h"
#include "model/latent_attention.h"
#include "statistics/backward_pass.h"
#include "statistics/collect_phases.h"
#include "statistics/collect_ranks.h"
#include "statistics/collect_work.h"
#include "statistics/hidden_states.h"
#include "statistics/layer_fields.h"
#include "statistics/moment_observer.h"
#include "statistics/run_record.h"
#include "statistics/spectrum.h"
#include "statistics/state_check.h"

namespace oscar {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Tokens read back at once in the second pass: what a cache holds; on a GPU, where they already are, a whole chunk.
constexpr std::int64_t kEnergyRows = 4096, kGpuEnergyRows = kGpuChunkRows;
constexpr std::size_t kStepsToTrim = 16;  // of the heap

SequenceBatch batch_of(const TokenPlan& plan, const Step& step) {
  SequenceBatch batch;
  for (std::size_t i = step.first; i < step.first + step.count; ++i) {
    batch.ids.push_back(static_cast<std::int64_t>(i));
    batch.lengths.push_back(plan.pieces[i].length);
    batch.starts.push_back(0);
  }
  return batch;
}

InterruptedError interrupted_run(const CollectOptions& options) {
  return InterruptedError("interrupted; the state is saved in " + run_directory_of(options).string() +
                              ". Resume with: " + options.resume_command,
                          true);
}

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
        watch_(options.device),
        layer_watch_(options.device) {
    std::vector<SampledSequence> sequences;
    for (const Piece& piece : plan.pieces) sequences.push_back({piece.sequence, piece.length});
    sample_ = sample_sequences(options.seed, prompts.sha256, sequences, options.rows);
    report_.kl_labels = options.kl ? kl_labels(plan, options.far) : 0;
  }

  CollectReport run() {
    const double start = now();
    std::optional<ResumePoint> point = work_.load_point();
    if (point) check_point(*point);
    report_.resumed = point.has_value();
    report_.layers.resize(static_cast<std::size_t>(config_.layers));
    if (point) embedding_energy_ = point->embedding_energy;
    const bool forward = !point || point->layer < config_.layers;
    if (options_.ranks != nullptr) together_ = start_together(*options_.ranks, point ? point->layer : 0);
    if (forward) run_layers(point);
    const ResumePoint* behind = forward ? nullptr : &*point;
    if (has_kl())
      run_backward(*make_kl_task(config_, prompts_, options_), config_.layers, phase::kKlMetric, behind,
                   report_.kl_seconds);
    if (options_.row_gradients) {
      run_backward(*make_row_gradient_task(config_, prompts_, options_, sample_), row_gradient_base(),
                   phase::kRowGradients, behind, report_.row_gradient_seconds);
    }
    write_statistics();
    report_.seconds = now() - start;
    return report_;
  }

 private:
  Statistics header() const {
    return statistics_header(checkpoint_, fingerprint_, prompts_, plan_, options_,
                             static_cast<std::int64_t>(sample_.size()));
  }

  // What state files have to be like.
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

  // Prompts too short for any far pair leave no metric behind.
  bool has_kl() const { return report_.kl_labels > 0; }
  bool has_backward() const { return has_kl() || options_.row_gradients; }
  // Points (ResumePoint) at which the backward pass of the row gradients begins, and behind all passes.
  std::int64_t row_gradient_base() const { return config_.layers + (has_kl() ? backward_points(config_.layers) : 0); }
  std::int64_t last_point() const {
    return row_gradient_base() + (options_.row_gradients ? backward_points(config_.layers) : 0);
  }

  // Damage shows now, not at the end.
  void check_point(const ResumePoint& point) const {
    const StateFacts run = state_facts();
    const std::string where = work_.file("point.safetensors").string();
    const std::int64_t layers = config_.layers, last = last_point();
    const auto steps = static_cast<std::int64_t>(point.layer < layers ? plan_.steps.size() : plan_.pieces.size());
    if (point.layer > last || point.step > (point.layer < last ? steps : 0)) {
      throw InputError(where + ": names layer " + std::to_string(point.layer) + " and step " +
                       std::to_string(point.step) + ", the run has " + std::to_string(config_.layers) + " layers of " +
                       std::to_string(steps) + " steps; delete the work directory to start anew");
    }
    check_energy_sum(point.embedding_energy, run, where, "embedding_energy");
    const std::int64_t base = row_gradient_base();
    const bool forward = point.layer<layers, in_kl = point.layer> layers && point.layer < base;
    const std::int64_t at_work = forward ? point.layer : layers - (point.layer - (in_kl ? layers : base));
    const bool summed = point.step > 0 && at_work >= 0 && at_work < layers && config_.holds_kv(at_work);
    if (point.step > 0 && forward && !summed) {
      check_energy_sum(point.sums.residual_energy, run, where, "residual_energy");
    }
    if (summed && forward) check_running_sums(point.sums, run, where);
    if (summed && in_kl) check_kl_sums(point.sums, run, where);
    if (summed && point.layer > base) check_row_gradient_sums(point.sums, run, where);
    for (std::int64_t layer = 0; layer < std::min(point.layer, layers); ++layer) {
      if (!config_.holds_kv(layer)) continue;
      // Is a backward pass that begins at `from` through?
      const auto through = [&](std::int64_t from) { return layer > from + layers - point.layer; };
      check_finished_layer(work_.load_layer(layer), run, work_.layer_file(layer).string(), has_kl() && through(layers),
                           options_.row_gradients && through(base));
    }
    if (point.layer >= layers && point.layer < last) {
      log_info("resuming in the backward passes, " + std::to_string(point.layer - layers) + " of " +
               std::to_string(last - layers) + " stages done");
    }
    if (point.layer < layers) {
      log_info("resuming at layer " + std::to_string(point.layer) + ", step " + std::to_string(point.step) + " of " +
               std::to_string(plan_.steps.size()));
    }
  }

  void run_layers(const std::optional<ResumePoint>& point) {
    load_weights();
    const bool keep = point.has_value();
    const std::int64_t done =
        point && point->step > 0 ? plan_.steps[point->step - 1].position + plan_.steps[point->step - 1].tokens : 0;
    const std::int64_t first = keep ? point->layer : 0;
    std::optional<Timeline::Phase> opening(std::in_place, timeline(), phase::kSpool);
    hidden_ = keep ? std::make_unique<HiddenStates>(work_, states_shape(), first, done)
                   : std::make_unique<HiddenStates>(work_, states_shape());
    deferred_ = hidden_->held() && !has_backward();
    if (keep) saved_layer_ = first, saved_inside_ = point->step > 0;
    keys_values_ = std::make_unique<MirroredSpool>(work_.file("kv.bin"), plan_.tokens,
                                                   std::vector<std::int64_t>{2 * config_.kv_heads, config_.head_dim},
                                                   options_.dtype, keep, options_.device, done);
    opening.reset();
    opening.emplace(timeline(), phase::kMoments);
    FullAttention attention;
    MomentObserver observer(attention, config_, prompts_, plan_, sample_, options_.far, options_.device, timeline());
    opening.reset();

    if (!point) embed();
    progress_ = std::make_unique<Progress>("collect", plan_.tokens * (config_.layers - first) - done, "layer-tokens");
    for (std::int64_t layer = first; layer < config_.layers; ++layer) {
      run_layer(layer, observer, point && layer == first && point->step > 0 ? &*point : nullptr);
    }
    progress_->finish();
    progress_.reset();
    const double observed = observer.seconds();
    report_.moment_seconds += observed + watch_.seconds();
    report_.far_seconds += observer.far_seconds();
    report_.forward_seconds += layer_watch_.seconds() - observed - report_.far_seconds;
    const Timeline::Phase weights(timeline(), phase::kWeights);
    decoder_.reset();  // they are not needed any more
  }

  Timeline* timeline() const { return options_.timeline; }

  void load_weights() {
    const Timeline::Phase weights(timeline(), phase::kWeights);
    decoder_ = std::make_unique<Decoder>(
        checkpoint_, DecoderOptions{options_.dtype, options_.device, options_.stream_layers, /*prefetch=*/true,
                                    together_ ? options_.gather : nullptr});
  }

  void begin_layer(std::int64_t layer, MomentObserver& observer, const ResumePoint* from) {
    const at::Tensor out = attention_out_weight(layer);
    const Timeline::Phase moments(timeline(), phase::kMoments);
    observer.begin_layer(from == nullptr ? nullptr : &from->sums, out);
  }

  at::Tensor attention_out_weight(std::int64_t layer) {
    const Timeline::Phase weights(timeline(), phase::kWeights);  // streamed layers are loaded here
    return output_weight(config_, decoder_->layer_weights(layer));
  }

  HiddenStates::Shape states_shape() const {
    HiddenStates::Shape shape{plan_.tokens, config_.hidden, options_.dtype, options_.device, false, has_backward()};
    const std::uint64_t bytes = c10::elementSize(shape.dtype) * static_cast<std::uint64_t>(shape.rows * shape.hidden);
    shape.held = options_.hold_states || (shape.device.is_cuda() && bytes <= kMostMirrorBytes);
    return shape;
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

  // One backward pass, whose points begin at `base`; name: of its phase. from: where to go on; null: from its
  // beginning.
  void run_backward(BackwardTask& task, std::int64_t base, const char* name, const ResumePoint* from, double& seconds) {
    const std::int64_t layers = config_.layers, end = base + backward_points(layers);
    if (from != nullptr && from->layer >= end) return;
    if (from != nullptr && from->layer < base) from = nullptr;
    const Timeline::Phase backward(timeline(), name);
    const c10::InferenceMode off(false);
    const double start = now();
    std::int64_t tokens = 0;
    for (const Piece& piece : plan_.pieces) {
      if (!task.labels(piece).empty()) tokens += piece.length;
    }
    const std::int64_t point = from == nullptr ? base : from->layer;
    hidden_.reset(), keys_values_.reset();
    Progress progress(name, static_cast<std::uint64_t>(tokens * (end - point)), "layer-tokens");
    BackwardPass::Hooks hooks;
    hooks.save = [&](std::int64_t at, std::int64_t step, const LayerMoments& sums) { save_point(at, step, sums); };
    hooks.due = [&] { return interrupt_requested() || due(); };
    hooks.tick = [&](std::int64_t at, std::int64_t done) {
      progress.set_note(at == base ? "labels"
                                   : "layer " + std::to_string(layers - (at - base) + 1) + "/" +
                                         std::to_string(layers) + ", backward");
      progress.advance(static_cast<std::uint64_t>(done));
      if (interrupt_requested()) throw interrupted();
      if (options_.after_step) options_.after_step();
    };
    BackwardPass(checkpoint_, prompts_, plan_, options_, work_, task, base, hooks)
        .run(point, from == nullptr ? 0 : from->step, from == nullptr ? nullptr : &from->sums);
    progress.finish();
    seconds = now() - start;
  }

  void embed() {
    const Timeline::Phase forward(timeline(), phase::kForward);
    double energy = 0;
    begin_states(0);
    for (const Step& step : plan_.steps) {
      const at::Tensor hidden = decoder_->embed(step_ids(prompts_, plan_, step));
      energy += residual_energy(hidden, step, "the embedding");
      write_states(0, step, hidden);
      if (interrupt_requested()) throw interrupted();
    }
    embedding_energy_ = energy_tensor(energy);
    if (!deferred_) save_start(0);
  }

  void run_layer(std::int64_t layer, MomentObserver& observer, const ResumePoint* from) {
    begin_states(layer + 1);
    const bool observed = config_.holds_kv(layer);  // a layer without a KV cache only passes its states on
    if (observed) begin_layer(layer, observer, from);
    double energy = from == nullptr ? 0.0 : from->sums.residual_energy[0].item<double>();
    const double start = now();
    std::int64_t tokens = 0;
    for (std::size_t i = from == nullptr ? 0 : static_cast<std::size_t>(from->step); i < plan_.steps.size(); ++i) {
      const Step& step = plan_.steps[i];
      if (observed) observer.begin_step(step, *keys_values_);
      const at::Tensor next = forward_step(layer, step, read_states(layer, step), observer);
      energy += residual_energy(next, step, "layer " + std::to_string(layer));
      write_states(layer + 1, step, next);
      tokens += step.tokens;
      progress_->set_note("layer " + std::to_string(layer + 1) + "/" + std::to_string(config_.layers));
      progress_->advance(static_cast<std::uint64_t>(step.tokens));
      const bool stop = interrupt_requested();
      if (stop || due()) save_inside(layer, static_cast<std::int64_t>(i) + 1, observed ? &observer : nullptr, energy);
      if (stop) throw interrupted();
      // The activations of a step leave holes between small blocks that live on; glibc keeps them, and more with every
      // step, unless it is told to give them back.
      if (i % kStepsToTrim == kStepsToTrim - 1) malloc_trim(0);
      if (options_.after_step) options_.after_step();
    }
    if (observed) finish_layer(layer, observer, energy);
    // The states that leave the next layer would take the file of those that a state inside this one goes on from.
    if (!deferred_ || saved_inside_ || due()) save_start(layer + 1);
    LayerReport& report = report_.layers[static_cast<std::size_t>(layer)];
    report.tokens_per_second = static_cast<double>(tokens) / std::max(now() - start, 1e-9);
    if (observed) print_layer(report);
  }

  at::Tensor forward_step(std::int64_t layer, const Step& step, const at::Tensor& hidden, MomentObserver& observer) {
    const Timeline::Phase forward(timeline(), phase::kForward);
    layer_watch_.start();
    const at::Tensor next = decoder_->run_layer(layer, hidden, batch_of(plan_, step), observer);
    layer_watch_.stop();
    observer.check_step();
    return next;
  }

  bool due() const { return now() - saved_ >= options_.checkpoint_seconds; }

  // The state in which `layer` begins. Behind the last one nothing but a backward pass reads hidden states.
  void save_start(std::int64_t layer) {
    if (layer < config_.layers || has_backward()) sync_states(layer);
    {
      const Timeline::Phase saving(timeline(), phase::kSaving);
      for (const auto& [finished, moments] : unsaved_) work_.save_layer(finished, moments);
      unsaved_.clear();
    }
    save_point(layer, 0, {});
  }

  // The state behind `step` steps of a layer. observer: null in a layer without a KV cache.
  void save_inside(std::int64_t layer, std::int64_t step, const MomentObserver* observer, double energy) {
    if (saved_layer_ != layer) save_start(layer);
    sync_states(layer + 1);
    {
      const Timeline::Phase syncing(timeline(), phase::kSync);
      keys_values_->sync();
    }
    const Timeline::Phase saving(timeline(), phase::kSaving);
    LayerMoments partial;
    if (observer != nullptr) observer->store_partial(partial);
    partial.residual_energy = energy_tensor(energy);
    save_point(layer, step, partial);
  }

  void finish_layer(std::int64_t layer, const MomentObserver& observer, double energy) {
    LayerMoments moments = finished_moments(layer, observer, energy);
    describe_layer(layer, moments);
    if (deferred_) {
      unsaved_.emplace(layer, std::move(moments));
      return;
    }
    const Timeline::Phase saving(timeline(), phase::kSaving);
    work_.save_layer(layer, moments);
  }

  LayerMoments finished_moments(std::int64_t layer, const MomentObserver& observer, double energy) {
    const Timeline::Phase finishing(timeline(), phase::kMoments);
    LayerMoments moments;
    observer.finish_layer(moments);
    watch_.start();
    EnergyAccumulator weighted(moments.q_gram, options_.device);
    const std::int64_t step = options_.device.is_cuda() ? kGpuEnergyRows : kEnergyRows;
    for (std::int64_t t = 0; t < plan_.tokens; t += step) {
      const at::Tensor rows = read_keys_values(t, std::min(step, plan_.tokens - t));
      weighted.add(rows.narrow(1, 0, config_.kv_heads), rows.narrow(1, config_.kv_heads, config_.kv_heads));
    }
    const at::Tensor energy_gram = weighted.energy_gram();
    watch_.stop();
    moments.energy_gram = energy_gram.cpu();
    const at::Tensor out = output_weight(config_, decoder_->layer_weights(layer));
    moments.wo_gram = output_projection_gram(out, config_.kv_heads, config_.head_dim).cpu();
    moments.residual_energy = energy_tensor(energy);
    return moments;
  }

  // Sum of |x|^2 over the rows of a step; NumericalError where it is not finite.
  double residual_energy(const at::Tensor& hidden, const Step& step, const std::string& where) {
    const Timeline::Phase moments(timeline(), phase::kMoments);
    watch_.start();
    const at::Tensor norms = at::linalg_vector_norm(hidden, 2, at::IntArrayRef({-1}), false, at::kFloat);
    const at::Tensor total = norms.to(at::kDouble).square().sum();
    watch_.stop();
    const double energy = total.item<double>();  // on a GPU this waits for the layer
    if (!std::isfinite(energy)) {
      const std::int64_t row = norms.isfinite().logical_not().nonzero()[0][0].item<std::int64_t>();
      throw NumericalError(where + ": the hidden state of " + describe_row(prompts_, plan_, step, row) +
                           " holds NaN or infinity; check the checkpoint, or try --dtype float32");
    }
    return energy;
  }

  at::Tensor energy_tensor(double energy) const {
    return at::tensor({energy, static_cast<double>(plan_.tokens)}, at::kDouble);
  }

  void save_point(std::int64_t layer, std::int64_t step, const LayerMoments& sums) {
    const Timeline::Phase saving(timeline(), phase::kSaving);
    work_.save_point({layer, step, sums, embedding_energy_, {}});
    if (hidden_) hidden_->saved_state(layer);
    saved_ = now(), saved_layer_ = layer, saved_inside_ = step > 0;
  }

  InterruptedError interrupted() const { return interrupted_run(options_); }

  void describe_layer(std::int64_t layer, const LayerMoments& moments) {
    describe(report_.layers[static_cast<std::size_t>(layer)], layer, moments);
  }

  void describe(LayerReport& report, std::int64_t layer, const LayerMoments& moments) const {
    const Timeline::Phase spectra(timeline(), phase::kSpectra);
    const Spectrum q = Spectrum::of(moments.q_gram.mean(0)), o = Spectrum::of(moments.o_gram.mean(0));
    report.layer = layer;
    report.q_trace = q.trace;
    report.q_top8 = q.top8;
    report.o_trace = o.trace;
    report.o_top8 = o.top8;
  }

  void print_layer(const LayerReport& r) const {
    char text[200];
    std::snprintf(
        text, sizeof text,
        "layer %3lld/%lld  %8.0f tokens/s   Q^T Q trace %.3e, top 8 %5.1f%%   V^T S^T S V trace %.3e, top 8 %5.1f%%",
        static_cast<long long>(r.layer + 1), static_cast<long long>(config_.layers), r.tokens_per_second, r.q_trace,
        100 * r.q_top8, r.o_trace, 100 * r.o_top8);
    log_info(text);
  }

  void write_statistics() {
    const Timeline::Phase saving(timeline(), phase::kSaving);
    Statistics s = header();
    if (!embedding_energy_.defined()) embedding_energy_ = work_.load_point()->embedding_energy;
    s.embedding_energy = embedding_energy_;
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      if (!config_.holds_kv(layer)) continue;
      const auto unsaved = unsaved_.find(layer);
      LayerMoments moments = unsaved != unsaved_.end() ? std::move(unsaved->second) : work_.load_layer(layer);
      moments.row_priority.clear(), moments.row_position.clear();
      for (const SampledToken& token : sample_) {
        moments.row_priority.push_back(token.priority);
        moments.row_position.push_back(token.position);
      }
      if (report_.layers[static_cast<std::size_t>(layer)].q_trace == 0) describe_layer(layer, moments);
      s.layers.push_back(std::move(moments));
    }
    std::erase_if(report_.layers, [&](const LayerReport& layer) { return layer.q_trace == 0; });
    drop_empty_far_pairs(s);
    if (options_.ranks == nullptr) {
      save_statistics(s, options_.output);
    } else {
      describe_all(deliver_share(s, options_, work_));
    }
  }

  // What all ranks found, in the report of the first.
  void describe_all(const std::optional<Statistics>& whole) {
    if (!whole) return;
    report_.far_queries = 0;
    for (std::size_t i = 0; i < whole->layers.size(); ++i) {
      const LayerMoments& m = whole->layers[i];
      const std::int64_t layer = report_.layers[i].layer;
      describe(report_.layers[i], layer, m);
      if (m.far_count.defined()) report_.far_queries = std::max(report_.far_queries, m.far_count[0].item<double>());
      if (m.kl_count.defined()) report_.kl_labels = m.kl_count[0].item<std::int64_t>();
    }
  }

  // Prompts too short for any far pair leave no metrics behind, rather than zeros.
  void drop_empty_far_pairs(Statistics& s) {
    if (!s.layers.front().far_count.defined()) return;
    // A layer with a sliding window shorter than the recent tokens has none of its own; the others decide.
    for (const LayerMoments& m : s.layers) {
      report_.far_queries = std::max(report_.far_queries, m.far_count[0].item<double>());
    }
    if (report_.far_queries > 0.0) return;
    for (LayerMoments& m : s.layers)
      for (const MetricField& field : kFarPairFields) m.*field.tensor = at::Tensor();
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
  Stopwatch watch_, layer_watch_;  // moments outside the observer; the layers with the observer
  // With hidden states in memory, a state is saved when it is due, and finished layers with it; what a run that ends
  // before would have to delete again is not written.
  bool deferred_ = false;
  std::map<std::int64_t, LayerMoments> unsaved_;  // finished layers that are in no file
  double saved_ = now();
  std::int64_t saved_layer_ = -1;  // in which the saved state goes on; -1: none
  bool saved_inside_ = false;      // behind some of its steps
  bool together_ = false;          // all ranks begin at the same layer
  CollectReport report_;
};

std::string fingerprint_of(const Checkpoint& checkpoint, Timeline* timeline) {
  const Timeline::Phase hashing(timeline, phase::kWeights);
  return checkpoint.fingerprint();
}

}  // namespace

std::vector<std::string> collect_phases() {
  return {phase::kStarting, phase::kPrompts,  phase::kWeights,      phase::kForward, phase::kMoments,
          phase::kFarPairs, phase::kKlMetric, phase::kRowGradients, phase::kSpool,   phase::kSync,
          phase::kSpectra,  phase::kRanks,    phase::kSaving};
}

fs::path run_directory_of(const CollectOptions& options) {
  if (!options.work_dir.empty()) return options.work_dir;
  fs::path path = options.output;
  path += ".work";
  return path;
}

fs::path work_directory_of(const CollectOptions& options) {
  const fs::path path = run_directory_of(options);
  return options.ranks == nullptr ? path : path / ("rank-" + std::to_string(options.ranks->rank()));
}

CollectReport collect(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                      const CollectOptions& options) {
  if (options.kl) refuse_latent(checkpoint.config(), "--metric kl");
  if (options.row_gradients) refuse_latent(checkpoint.config(), "--row-gradients");
  if (options.ranks == nullptr || options.ranks->is_first()) {
    require_output_file(options.output, options.overwrite);
    const AtomicFile probe(options.output);  // fails now, not after hours, where the output cannot be written
  }
  const c10::InferenceMode no_gradients;
  settle_on_device(options.timeline, options.device);
  const std::string fingerprint = fingerprint_of(checkpoint, options.timeline);
  if (plan.tokens == 0 && options.ranks == nullptr) {  // more shards than steps: nothing to run, and nothing to resume
    save_statistics(empty_shard(checkpoint, fingerprint, prompts, plan, options), options.output);
    return {};
  }
  std::optional<Timeline::Phase> opening(std::in_place, options.timeline, phase::kSaving);
  const Json identity = run_identity(fingerprint, prompts, options);
  if (options.ranks != nullptr) require_same_everywhere(*options.ranks, identity);
  WorkDirectory work(work_directory_of(options), identity, options.resume);
  const bool fresh = !fs::exists(work.file("point.safetensors"));
  opening.reset();
  if (work.threads() != at::get_num_threads()) {
    log_info("using " + std::to_string(work.threads()) + " threads, as the run was started with");
    at::set_num_threads(work.threads());
  }
  try {
    CollectReport report;
    if (plan.tokens > 0) {
      report = Collector(checkpoint, prompts, plan, options, fingerprint, work).run();
    } else {  // more ranks than steps
      start_together(*options.ranks, -1);
      deliver_share(empty_shard(checkpoint, fingerprint, prompts, plan, options), options, work);
    }
    const Timeline::Phase saving(options.timeline, phase::kSaving);
    work.remove();
    if (options.ranks != nullptr) remove_run_directory(options);
    return report;
  } catch (const InterruptedError& e) {
    if (e.resumes) throw;
    throw interrupted_run(options);  // while waiting for other ranks
  } catch (const NumericalError&) {
    if (options.work_dir.empty()) work.remove();  // it would fail at the same token again
    throw;
  } catch (const InputError&) {
    // A checkpoint without a tensor, say: a repaired one is another model, so there is nothing to resume.
    if (fresh && options.work_dir.empty()) work.remove();
    throw;
  }
}

}  // namespace oscar
