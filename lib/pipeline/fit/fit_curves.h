// oscar-fit with a model: measures curves on calibration text, or reads curves of an earlier run, for the measured
// allocation of bit widths.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file_roles.h"
#include "checkpoint/checkpoint.h"
#include "curves/curve_text.h"
#include "curves/measure_curves.h"
#include "distributed/ranks.h"
#include "fit/fit_options.h"
#include "pipeline/common/common_options.h"
#include "text/prompts.h"

namespace oscar {

struct CurveArguments {
  std::string allocate = "auto";            // value of --allocate; auto: measured with `text` or `file`
  std::vector<std::string> text;            // calibration text: .jsonl prompts or .txt documents
  RowSettings rows;                         // for that text
  bool collects = false;                    // statistics are collected first, so their prompts may replace `text`
  std::optional<CurveText> loaded;          // the text, if it was already read
  std::string file;                         // curves.json of an earlier run; empty: measure them
  std::int64_t context = 0, sequences = 0;  // 0: by curve_shape()
  std::string work_dir;                     // empty: OUTPUT.curves.work
  bool resume = false, stream_layers = false;
  bool auto_dtype = false;          // the model's run has chosen the dtype by --dtype auto
  std::string resume_command;       // for the message of an interrupted run
  std::optional<double> target_kl;  // end-to-end KL is measured until the smallest budget of this KL is known
  Ranks* ranks = nullptr;           // ranks that measure together; the first one writes
};

// The sequences that curves are measured on, and the most profiles of a side: those of the options, else 8 of 2,048
// tokens. On the CPU a larger model gets 4 sequences, then 6 of 1,024 tokens whose later layers only one profile of a
// side passes, then 4, until they take about ten minutes of two cores, or twenty with 270 million weights. The rule
// counts products, not seconds, so that it gives the same on every machine.
struct CurveShape {
  std::int64_t sequences = 8, context = 2048, profiles = static_cast<std::int64_t>(ChoiceOptions{}.most);
  bool one() const { return profiles == kAnchors; }  // CurvePasses::measure()
  std::string text() const;                          // "8 sequences of 2,048 tokens"
  std::string options() const;                       // "--curve-sequences 8 --curve-context 2048"
};
inline constexpr CurveShape kFullCurves{}, kQuickCurves{4, 1024};
CurveShape curve_shape(const CurveArguments& arguments, const ModelConfig& model, at::Device device);

// How the model runs. With --dtype auto the products of such a model with its weights are in bfloat16 on a CPU that has
// instructions for them, and all else is in float32: curves then take about half as long. Rounding is measured and
// taken off (curve_passes.h).
DecoderOptions curve_decoding(const CurveArguments& arguments, const CommonOptions& common, const ModelConfig& model,
                              at::Device device);

// Products of the projections and the MLP of a layer, for each token.
double layer_products(const ModelConfig& model);

// Whether bit widths are allocated by measured curves. UsageError for contradictory options.
bool uses_curves(const CurveArguments& arguments, const CommonOptions& common, const std::string& method);

// The files that measuring reads and writes.
void add_curve_roles(const CurveArguments& arguments, const CommonOptions& common, FileRoles& roles);

// The curves for a fit with these options; the model runs on their device. InputError if the statistics or the curves
// belong to another model or fit. budgets: bits of the planned bundles, ascending. text_hashes: keep the text's hashes,
// as in `Curves`.
MeasuredCurves curves_for(const Statistics& statistics, const std::string& statistics_sha256, const FitOptions& options,
                          const CacheWindows& windows, const CommonOptions& common, const CurveArguments& arguments,
                          const std::vector<double>& budgets, bool text_hashes);

// The directory for the state of the measurement.
fs::path curve_directory(const CurveArguments& arguments, const CommonOptions& common);

// --dry-run: the cost of measuring.
struct CurvePlan {
  CurveShape shape;
  std::uint64_t most_passes = 0, memory_bytes = 0;
  DecoderOptions decoding;
  bool chosen = false;  // less than kFullCurves, because the CPU is slow
  bool needed = false;  // a target needs curves, so that the analytic allocation is no way out
};
// What a CPU's choice of fewer or shorter sequences costs, and the other choices; empty if there was none.
std::string curve_choice_text(const CurvePlan& plan);
CurvePlan plan_curves(const Checkpoint& checkpoint, at::Device device, const CommonOptions& common,
                      const CurveArguments& arguments, const CurveText& text, std::size_t budgets);

// The sequences of --text, otherwise of `prompts`, whose files are named `prompts_name`. InputError for too little
// text.
CurveText load_curve_text(const Checkpoint& checkpoint, at::Device device, const CacheWindows& windows,
                          const CurveArguments& arguments, const PromptSet* prompts = nullptr,
                          const std::string& prompts_name = {});

// The model of --model. InputError if the statistics belong to another one.
Checkpoint open_model_of(const Statistics& statistics, const CommonOptions& common);

}  // namespace oscar
