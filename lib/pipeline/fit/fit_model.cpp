#include "pipeline/fit/fit_model.h"

#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "collect/collect_work.h"
#include "collect/reading_range.h"
#include "collect/run_record.h"
#include "fit/fit_phases.h"
#include "pipeline/common/device_choice.h"
#include "pipeline/common/output_files.h"

namespace oscar {
fs::path statistics_beside(const std::string& output) { return beside_output(output, ".statistics.safetensors"); }

ModelRun::ModelRun(const CollectArguments& collect, const CommonOptions& common, const std::string& work_dir)
    : arguments_(collect),
      common_(common),
      work_dir_(work_dir),
      checkpoint_(Checkpoint::open(locate_model(common.model, common.revision))) {
  CollectOptions& options = arguments_.options;
  options.output = statistics_beside(common.output);
  if (!work_dir_.empty()) options.work_dir = work_dir_ / "collect";
  if (!options.resume && !common.dry_run) require_output_file(options.output, common.overwrite);
  options.device = choose_device(common);
  options.dtype = choose_dtype(common, options.device);
  complete_collect_options(arguments_, common, checkpoint_);
  plan_own_text();
}

// With prompts, text is generated only on request.
void ModelRun::plan_own_text() {
  CollectOptions& options = arguments_.options;
  const std::optional<std::int64_t>& tokens = arguments_.own_tokens;
  const bool beside = !arguments_.prompts.empty();
  if (beside && tokens.value_or(0) == 0) return;
  if (!beside && tokens) {
    throw UsageError("--own-text adds text to prompts: pass --prompts, or only --tokens for self-generated text");
  }
  const fs::path file = beside_output(common_.output, ".prompts.jsonl");
  own_text_.emplace(checkpoint_, arguments_, common_, file,
                    work_dir_.empty() ? fs::path(file.string() + ".work") : work_dir_ / "text",
                    beside ? *tokens : options.tokens);
  // The budget counts the prompts and ends within them, because the generated text comes first.
  if (beside) {
    arguments_.own_beside = own_text_->tokens();
    options.tokens += own_text_->tokens();
  }
  options.resume_command = own_text_->resume_command();
  if (!common_.dry_run) own_text_->require_usable();
}

void ModelRun::add_roles(FileRoles& roles) const {
  add_collect_roles(arguments_, checkpoint_, roles);
  if (own_text_) own_text_->add_roles(roles);
}

PromptSet ModelRun::read_own_text() {
  if (common_.dry_run) return own_text_->placeholder();
  CollectOptions& options = arguments_.options;
  {
    const Timeline::Phase writing(options.timeline, phase::kOwnText);
    own_text_->write();
  }
  options.written = own_text_->record();
  options.files.insert(options.files.begin(), utf8_text(own_text_->file().filename().string()));
  return own_text_->read();
}

void ModelRun::read_prompts(const CacheWindows& windows) {
  const CollectOptions& options = arguments_.options;
  const HeldOutShape wanted =
      wanted_shape(checkpoint_.config(), device(), options.context > 0 ? options.context : options.seq_len);
  if (!arguments_.prompts.empty()) {
    given_ = oscar::read_prompts(arguments_, checkpoint_);
    held_out_ = hold_out(given_, options.tokens - arguments_.own_beside, wanted, windows);
  }
  for (const std::string& file : options.files) given_names_ += (given_names_.empty() ? "" : ", ") + file;
  prompts_ = given_;
  if (own_text_) {
    PromptSet own = read_own_text();
    prompts_ = joined(std::move(own), std::move(prompts_));
    if (arguments_.prompts.empty()) held_out_ = hold_out(prompts_, options.tokens, wanted, windows);
  }
  choose_sequences(arguments_, checkpoint_, prompts_, common_.dry_run);
  run_ = plan_collect(arguments_, checkpoint_, prompts_);
  checkpoint_.set_run_length(run_.plan.whole_longest);
}

// Curves measured on self-generated text as well gave bit widths up to 3 times worse on text like the prompts
// (docs/results.md).
CurveText ModelRun::curve_text(const CacheWindows& windows, const CurveArguments& curves) const {
  const bool alone =
      !own_text_ ||
      token_count(given_) >= curve_shape(curves, checkpoint_.config(), device()).context;  // enough for one sequence
  std::string names = given_names_;
  if (!alone) names = own_text_->file().filename().string() + (names.empty() ? "" : ", ") + names;
  return load_curve_text(checkpoint_, device(), windows, curves, alone ? &given_ : &prompts_, names);
}

std::optional<HeldOutShape> ModelRun::held_out_shape(const CacheWindows& windows) const {
  if (held_out_.prompts.empty()) return std::nullopt;
  const CollectOptions& options = arguments_.options;
  // Without --context, the contexts are those that the model reads well (choose_sequences()).
  const std::int64_t served = arguments_.context > 0 ? options.context : options.seq_len;
  return shape_within(wanted_shape(checkpoint_.config(), device(), served), token_count(held_out_), windows);
}

std::optional<HeldOutText> ModelRun::held_out(const CacheWindows& windows) const {
  const std::optional<HeldOutShape> shape = held_out_shape(windows);
  if (!shape) return std::nullopt;
  const LazyTokenizer tokenizer(checkpoint_.location().directory / "tokenizer.json");
  CurveText text = oscar::curve_text(held_out_, given_names_, shape->context, shape->sequences, checkpoint_.config(),
                                     tokenizer, windows);
  const CollectOptions& options = arguments_.options;
  return HeldOutText{std::move(text.sequences), arguments_.context > 0 ? options.context : options.seq_len,
                     token_count(held_out_), arguments_.prompts.empty()};
}

FitShape ModelRun::shape(const std::optional<CurvePlan>& curves, const CacheWindows& windows,
                         std::size_t measurements) const {
  FitShape shape{.held_out = held_out_shape(windows), .windows = windows, .measurements = measurements};
  const bool tries = arguments_.context == 0 && arguments_.seq_len == 0 && arguments_.options.context > 0;
  if (tries && !tried_lengths(run_.plan.longest).empty()) shape.range_tokens = run_.plan.longest;
  shape.range = arguments_.range_decoding();
  if (own_text_) shape.text = own_text_->shape();
  shape.curves = curves;
  return shape;
}

ModelPlan ModelRun::plan(const std::optional<CurvePlan>& curves, const CacheWindows& windows,
                         std::size_t measurements) const {
  const CollectOptions& options = arguments_.options;
  const FitShape planned = shape(curves, windows, measurements);
  ModelPlan plan{run_.plan, options, run_.estimate};
  if (own_text_) plan.own_text = own_text_->plan_text();
  plan.curves = curves;
  plan.held_out = planned.held_out;
  plan.held_out_tokens = token_count(held_out_);
  plan.time = fit_time(checkpoint_, run_.plan, options, planned);
  return plan;
}

void ModelRun::log_other_ways(const CurvePlan& curves, const CacheWindows& windows, std::size_t measurements) const {
  if (!curves.chosen) return;
  const RunTime time = fit_time(checkpoint_, run_.plan, arguments_.options, shape(curves, windows, measurements));
  log_info(curve_choice_text(curves) + "; the run takes about " + duration_text(time.seconds()));
  for (const RunTime::Part& way : time.other_ways) log_info("  " + way.name + ": about " + duration_text(way.seconds));
}

// An interrupted run may have collected them already.
bool ModelRun::take_earlier() const {
  const CollectOptions& options = arguments_.options;
  if (!options.resume || !fs::exists(options.output)) return false;
  const Statistics found = load_statistics(options.output);
  const std::string fingerprint = checkpoint_.fingerprint();
  const Statistics wanted = statistics_header(checkpoint_, fingerprint, prompts_, run_.plan, options, 0);
  const bool same =
      found.model_fingerprint == fingerprint && found.metadata.value("parts", Json()) == wanted.metadata["parts"];
  if (!same && options.overwrite) return false;
  if (!same) {
    throw UsageError(options.output.string() +
                     ": holds statistics of another model, other prompts or other options; choose another output, or "
                     "replace it with --overwrite");
  }
  log_info("the statistics are taken from " + options.output.string());
  // Remains of a run that was killed between its last two steps, or within the last.
  const fs::path work = work_directory_of(options);
  if (holds_run(work)) WorkDirectory(work, run_identity(fingerprint, prompts_, options), true).remove();
  return true;
}

void ModelRun::collect(FitListener& listener) {
  if (take_earlier()) return;
  const CollectReport report = run_collect(run_, arguments_, checkpoint_, prompts_);
  listener.collected(run_.plan, arguments_.options, report);
}

void ModelRun::finish() const {
  std::error_code ec;
  if (!work_dir_.empty()) fs::remove(work_dir_, ec);  // fails, as intended, if it contains other files
}

}  // namespace oscar
