// oscar-fit: converts statistics of oscar-collect to a bundle of rotations and clip ratios.
#include <string>
#include <vector>

#include "apps/options/fit_arguments.h"
#include "apps/options/shared_options.h"
#include "apps/output/fit_output.h"
#include "apps/process_setup.h"
#include "base/errors.h"
#include "collect/collect_phases.h"
#include "fit/fit_phases.h"
#include "pipeline/common/rank_run.h"
#include "pipeline/fit/fit_listener.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-fit --model Qwen/Qwen3-8B --prompts prompts.jsonl -o bundle      (collects, measures and fits)\n"
    "oscar-fit --model Qwen/Qwen3-8B -o bundle                  (the model writes its own calibration text)\n"
    "oscar-fit --model Qwen/Qwen3-8B --prompts prompts.jsonl -o bundle --preset balanced   (quality in place of bits)\n"
    "oscar-fit stats.safetensors -o bundle\n"
    "oscar-fit stats.safetensors -o bundle --for sglang-branch          (what that format carries without loss)\n"
    "oscar-fit stats.safetensors -o bundle --scope head --clip search\n"
    "oscar-fit stats.safetensors -o bundle --clip 0.96,0.92     (the published pair)\n"
    "oscar-fit stats.safetensors -o bundle --method waterfill --model Qwen/Qwen3-8B --text prompts.jsonl\n"
    "oscar-fit stats.safetensors -o small --method waterfill --bits 1.5 --curves bundle/curves.json";

// The phases of collecting and of the fit, in the order of a run.
std::vector<std::string> phases() {
  std::vector<std::string> names = collect_phases();  // "saving" is last
  names.insert(names.begin() + 1, phase::kOwnText);
  names.insert(names.end() - 1, {phase::kStatistics, phase::kCurves, phase::kTransforms, phase::kClips,
                                 phase::kPredictions, phase::kHeldOut});
  return names;
}

// Whether a run for this output has left files beside it, such as its work directory.
bool has_remains(const fs::path& output) {
  const fs::path whole = fs::absolute(output).lexically_normal();
  std::error_code ec;
  for (fs::directory_iterator it(whole.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename().string().starts_with(whole.filename().string() + ".")) return true;
  }
  return false;
}

// A collecting run keeps its text, statistics and curves at any interruption.
int run_fit_resumable(const CLI::App& app, FitArguments& a) {
  const bool collects = a.statistics.empty();
  Timeline timeline(phases());
  if (a.common.verbose) a.fit.timeline = a.collect.options.timeline = &timeline;
  try {
    const FitRequest request = complete_fit(app, a);
    FitOutput output(request);
    run_fit(request, output);
    return 0;
  } catch (const InterruptedError& e) {
    if (!collects || a.common.dry_run || e.resumes) throw;
    if (!has_remains(a.common.output))
      throw InterruptedError("interrupted before anything was saved; run the command again", true);
    throw InterruptedError("interrupted; what was finished is kept. Resume with: " + a.curves.resume_command, true);
  }
}

int main_fit(int argc, char** argv) {
  FitArguments a;
  CLI::App app{"Fit 2-bit KV-cache rotations and clip ratios to statistics of oscar-collect.", "oscar-fit"};
  set_up_app(app, a.common, kExample);
  app.add_option("statistics", a.statistics, "Statistics file of oscar-collect")->type_name("FILE");
  add_output_options(app, a.common, false);
  add_fit_options(app, a);
  a.curves.resume_command = resume_command(argc, argv);
  return run_app(app, a.common, argc, argv, [&] {
    note_given_options(app, a);
    a.curves.rows = a.collect.rows;
    a.curves.resume_command = as_started(a.curves.resume_command);
    return run_as_rank(a.curves.resume_command, [&](Ranks* ranks) {
      a.curves.ranks = ranks;
      return run_fit_resumable(app, a);
    });
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { oscar::end_process(oscar::main_fit(argc, argv)); }
