#include "apps/options/fit_arguments.h"

#include <vector>

#include "base/errors.h"
#include "base/formatted.h"

namespace oscar {

void add_target_options(CLI::App& app, TargetArguments& a) {
  std::string list;
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    list += (list.empty() ? "" : ", ") + std::string(preset.name) + " " + formatted("%g", preset.kl);
    names.emplace_back(preset.name);
  }
  app.add_option("--preset", a.preset, "Waterfill, in place of --bits: a target of --target-kl by its name: " + list)
      ->check(CLI::IsMember(names));
  app.add_option("--target-kl", a.kl,
                 "Waterfill, in place of --bits: the smallest budget whose predicted mean KL to the BF16 cache is at "
                 "most this, in nats, by measured curves")
      ->check(real_number(1e-6, 100.0))
      ->type_name("KL");
  app.add_option("--target-ppl", a.perplexity,
                 "The same with perplexity over that of the BF16 cache, such as 1.01: a KL of its logarithm")
      ->check(real_number(1.000001, 1e6))
      ->type_name("RATIO");
}

void check_target(const CLI::App& app, const TargetArguments& a, const std::string& method, bool allocates,
                  bool uses_curves) {
  if (!a.given()) return;
  const std::string option = a.option();
  if (!allocates) {
    throw UsageError(option + " is for --method waterfill, whose budget can be chosen; " + method + " has one width");
  }
  const std::string why = "gives a budget, and " + option + " chooses one: drop one of the two";
  refuse_options(app, {"--bits", "--pareto"}, why);
  for (const char* other : {"--preset", "--target-ppl", "--target-kl"}) {
    if (other != option) refuse_options(app, {other}, "is a second target beside " + option + ": drop one of the two");
  }
  if (uses_curves) return;
  throw UsageError(option +
                   " needs measured curves, because analytic allocation predicts no KL: give --model and --text, or "
                   "--curves with curves.json of an earlier bundle, and not --allocate analytic; " +
                   kQuickCurves.options() + " measures them quickly");
}

}  // namespace oscar
