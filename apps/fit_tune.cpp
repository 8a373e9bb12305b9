#include "apps/fit_tune.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>

#include "apps/device_choice.h"
#include "base/errors.h"
#include "base/file_roles.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/progress.h"
#include "checkpoint/checkpoint_files.h"
#include "text/prompts.h"
#include "text/seen_text.h"
#include "tune/tune.h"

namespace oscar {
namespace {

// A text that was calibrated on would flatter every choice. Documents are known by the hash of their tokens, passages
// by those of their runs of tokens.
void require_unseen(const Statistics& statistics, const std::string& text, const Tokenizer& tokenizer,
                    const ChatTemplate& chat, std::int64_t vocabulary) {
  if (!statistics.metadata.is_object() || !statistics.metadata.contains("parts")) return;
  for (const Prompt& document : load_prompts({text}, tokenizer, chat, vocabulary).prompts) {
    const SeenText found = find_seen_text(statistics.metadata["parts"], document.ids);
    if (!found.seen()) continue;
    throw InputError(document.source + ": " + found.reason() +
                     " that the statistics were collected on; tune on text that was not");
  }
}

void print_tuned(const TuneResult& r, bool json) {
  if (json) return;
  const auto print = [](const char* format, auto... values) {
    char line[200];
    std::snprintf(line, sizeof line, format, values...);
    print_summary(line);
  };
  if (!r.key_sensitivity.empty()) {
    print_summary("sensitivity of each layer, measured over predicted (median 1)\nlayer      keys    values\n");
  }
  for (std::size_t i = 0; i < r.key_sensitivity.size(); ++i) {
    print("%5zu %9.3f %9.3f\n", i, r.key_sensitivity[i], r.value_sensitivity[i]);
  }
  print("third split, unseen: closed form KL %.5f, retrieval %.1f%%; %s KL %.5f, retrieval %.1f%%\n",
        r.closed_form.text_kl, 100 * r.closed_form.solved, r.closed_form_kept ? "kept," : "tuned", r.chosen.text_kl,
        100 * r.chosen.solved);
}

Json record_of(const TuneResult& r, const TuneOptions& o) {
  Json json = {{"text", {{"name", fs::path(o.text_name).filename().string()}, {"sha256", o.text_sha256}}},
               {"context", o.context},
               {"sequences", o.sequences},
               {"prompts", o.prompts},
               {"seed", o.seed},
               {"sensitivity", {{"key", r.key_sensitivity}, {"value", r.value_sensitivity}}},
               {"third_split", {{"closed_form", score_json(r.closed_form)}, {"chosen", score_json(r.chosen)}}},
               {"closed_form_kept", r.closed_form_kept},
               {"trials", r.trials.size()}};
  if (!o.window_choices.empty()) json["windows"] = {{"sink", r.windows.sink}, {"recent", r.windows.recent}};
  return json;
}

}  // namespace

Tuned tune_options(const Statistics& statistics, const FitOptions& base, const Windows& windows,
                   const CommonOptions& common, const TuneArguments& arguments) {
  if (common.model.empty()) throw UsageError("--tune needs --model, the model that the statistics were collected on");
  const Checkpoint checkpoint = Checkpoint::open(locate_model(common.model, common.revision));
  if (checkpoint.fingerprint() != statistics.model_fingerprint) {
    throw InputError("the statistics are of another model than " + common.model + " (fingerprint " +
                     statistics.model_fingerprint + ", found " + checkpoint.fingerprint() + ")");
  }
  FileRoles roles;
  roles.inputs(checkpoint_files(checkpoint.location()));
  roles.output_directory(common.output, "-o");
  roles.output(common.output + ".tune.json", "--tune's record");
  roles.check();
  const fs::path& directory = checkpoint.location().directory;
  const Tokenizer tokenizer = Tokenizer::from_file(directory / "tokenizer.json");
  require_unseen(statistics, arguments.text, tokenizer, ChatTemplate::from_model(directory),
                 checkpoint.config().vocabulary);
  Decoder decoder(checkpoint, {choose_dtype(common, base.device), base.device, arguments.stream_layers});
  TuneOptions options;
  options.text = load_text(arguments.text, tokenizer);
  options.text_name = arguments.text;
  options.text_sha256 = sha256_file(arguments.text);
  options.context = arguments.context;
  options.sequences = arguments.sequences;
  options.prompts = arguments.prompts;
  options.seed = common.seed;
  options.windows = windows;
  options.window_choices = arguments.window_choices;
  options.log = common.output + ".tune.json";
  std::unique_ptr<Progress> progress;
  options.on_trial = [&](const std::string& name, std::int64_t, std::int64_t total) {
    if (!progress) progress = std::make_unique<Progress>("tune", static_cast<std::uint64_t>(total), "trials");
    progress->set_note(name);
    progress->advance(1);
  };
  const TuneResult result = tune(statistics, base, checkpoint, decoder, tokenizer, options);
  if (progress) progress->finish();
  log_info("every trial is in " + options.log.string());
  print_tuned(result, common.json);
  return {result.options, result.windows, record_of(result, options)};
}

}  // namespace oscar
