// Scores bundles of one model, and methods that need none, side by side, each in one pass beside a baseline that runs
// once: mean KL to the BF16 cache on a text, share of equal top tokens, needles found. What oscar-verify measures of
// one bundle, without its checks; scripts/quality makes its table with it.
//   score_bundles --model DIR --text FILE [--device cuda] [--sequences N] [--needles N] [--needle-lengths N,...]
//   BUNDLE|METHOD...
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "base/errors.h"
#include "bench/split_evaluator.h"
#include "bundle/bundle.h"
#include "tasks/task.h"
#include "text/prompts.h"
#include "text/sequences.h"
#include "verify/comparison.h"

namespace oscar {
namespace {

struct Arguments {
  std::string model, text, device = "cpu";
  std::int64_t context = 2048, sequences = 8, needles = 0;
  std::vector<std::int64_t> lengths;
  std::vector<std::string> bundles;
};

std::vector<ScoreSplit> make_splits(const Arguments& a, const Tokenizer& tokenizer, std::int64_t max_position) {
  SequenceOptions cut;
  cut.context = a.context;
  cut.max_sequences = a.sequences;
  cut.max_position = max_position;
  cut.prefix = leading_special_tokens(tokenizer);
  cut.text_name = a.text;
  std::vector<ScoreSplit> splits(1);
  if (a.sequences > 0) {
    splits[0].sequences = cut_sequences(load_text(a.text, tokenizer), cut, CacheWindows{64, 256, 1}).sequences;
  }
  for (const std::int64_t length : a.lengths) {
    ScoreSplit& split = splits.emplace_back();
    for (const TaskPrompt& p : make_task("niah", length, a.needles, 0, tokenizer).prompts) {
      const AnswerSpan answer = p.answers.front();
      split.prompts.push_back({{p.ids.begin(), p.ids.begin() + answer.end}, answer.begin});
    }
  }
  return splits;
}

void run(const Arguments& a) {
  const CacheWindows windows{64, 256, 1};
  const Checkpoint checkpoint = Checkpoint::open(locate_model(a.model));
  const Tokenizer tokenizer = Tokenizer::from_file(checkpoint.location().directory / "tokenizer.json");
  DecoderOptions options;
  options.device = at::Device(a.device);
  Decoder decoder(checkpoint, options);
  const std::vector<ScoreSplit> splits = make_splits(a, tokenizer, checkpoint.config().max_position);
  std::vector<std::unique_ptr<SplitEvaluator>> evaluators;
  for (const ScoreSplit& split : splits)
    evaluators.push_back(std::make_unique<SplitEvaluator>(decoder, split, windows));
  for (const std::string& directory : a.bundles) {
    const std::optional<Bundle> bundle =
        fs::is_directory(directory) ? std::optional(load_bundle(directory)) : std::nullopt;
    // Methods without a bundle come with their authors' windows: the table is of common ones.
    const KvMethod method =
        bundle
            ? make_method(bundle->method, checkpoint.config(), &*bundle, windows)
            : select_methods({.ids = {directory}, .comparisons = {"common"}, .windows = windows, .context = a.context},
                             checkpoint.config(), {}, false)
                  .methods.back()
                  .method;
    std::printf("%-36s %.3f bits", fs::path(directory).filename().c_str(), method.bits_per_element());
    if (a.sequences > 0) {
      const Score text = evaluators[0]->evaluate(method);
      std::printf("  KL %.5f +- %.5f  same top %.2f%%", text.text_kl, text.text_error, 100 * text.same_top);
    }
    for (std::size_t i = 1; i < evaluators.size(); ++i) {
      const Score needles = evaluators[i]->evaluate(method);
      std::printf("  needles %lld: %.1f%% of %lld", static_cast<long long>(a.lengths[i - 1]), 100 * needles.solved,
                  static_cast<long long>(evaluators[i]->prompts()));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  oscar::Arguments a;
  CLI::App app{"Scores bundles and methods on one model side by side."};
  app.add_option("--model", a.model)->required();
  app.add_option("--text", a.text)->required();
  app.add_option("--device", a.device, "cpu or cuda; activations are float32")->capture_default_str();
  app.add_option("--context", a.context)->capture_default_str();
  app.add_option("--sequences", a.sequences, "of the text; 0: none")->capture_default_str();
  app.add_option("--needles", a.needles, "prompts of each length")->capture_default_str();
  app.add_option("--needle-lengths", a.lengths)->delimiter(',')->allow_extra_args(false);
  app.add_option("bundles", a.bundles, "directories, or ids of oscar-verify methods")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    oscar::run(a);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "score_bundles: %s\n", e.what());
    return 1;
  }
  return 0;
}
