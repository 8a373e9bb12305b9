#include "apps/options/collect_arguments.h"

#include "apps/options/row_options.h"

namespace oscar {

void add_prompts_option(CLI::App& app, CollectArguments& a, const std::string& text) {
  app.add_option("--prompts", a.prompts, text)->type_name("FILE");
}

void add_prompt_options(CLI::App& app, CollectArguments& a) {
  app.add_flag("--skip-bad-rows", a.rows.options.skip_bad_rows,
               "Count rows that are malformed or that the chat template cannot render, and go on");
  add_row_options(app, a.rows);
  app.add_option("--tokens", a.options.tokens, "Token budget over all prompts (default: 30000, and one full sequence)")
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 40));
  app.add_flag("--pack,!--no-pack", a.pack,
               "Prompts follow one another in sequences as long as the contexts that will be served; without it each "
               "prompt is a sequence")
      ->default_str("on");
  app.add_option("--seq-len", a.seq_len,
                 "Longest sequence (default: --context, or less where memory or the model's own reading ends before "
                 "it; 4096 with --no-pack)")
      ->type_name("N")
      ->check(whole_number(1, std::uint64_t{1} << 24));
  app.add_option(
         "--far-pairs", a.far_pairs,
         "BF16 windows that the quantized cache will have: metrics of the pairs outside them, for waterfill; or none")
      ->capture_default_str()
      ->type_name("SINK,RECENT");
  app.add_option("--checkpoint-seconds", a.options.checkpoint_seconds,
                 "Time between checkpoints on a GPU; on the CPU there is one after every layer")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(real_number(0.0, 1e9));
}

}  // namespace oscar
