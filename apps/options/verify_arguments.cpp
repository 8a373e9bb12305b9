#include "apps/options/verify_arguments.h"

#include "apps/options/row_options.h"
#include "export/export_format.h"
#include "report/number_text.h"
#include "verify/gates.h"

namespace oscar {
void add_source_options(CLI::App& app, VerifyArguments& a) {
  CLI::Option* bundle = app.add_option("--bundle", a.bundles,
                                       "Bundle of oscar-fit to evaluate; given several times, the first one is the "
                                       "candidate, which gates decide about, and rows are named by directory")
                            ->type_name("DIR|hf:org/name")
                            ->allow_extra_args(false);
  app.add_option("--rotations", a.rotations, "Published rotation files to evaluate")
      ->type_name("K.pt,V.pt")
      ->excludes(bundle);
  app.add_option("--clip", a.clip,
                 "Clip ratios of K and V for --rotations (default: those recorded in the files, or 0.96,0.92)")
      ->type_name("K,V");
  app.add_option("--as", a.form,
                 "Evaluate the bundle as this export format serves it: " + export_format_list() +
                     " (default: the first of these that loses nothing of it)")
      ->type_name("FORMAT");
  app.add_option("--served", a.request.served,
                 "Evaluate what a running server of vLLM or SGLang answers, by its log-probabilities: it is the "
                 "candidate, and bundles are shown beside it")
      ->type_name("URL")
      ->excludes("--rotations");
  app.add_option("--served-tokens", a.request.served_tokens,
                 "Tokens that the server generates at the end of each sequence, so that its decode kernels are "
                 "evaluated; 0: none")
      ->capture_default_str()
      ->check(whole_number(0, 4096));
  app.add_option("--served-requests", a.request.served_requests, "Requests that the server gets at once")
      ->capture_default_str()
      ->check(whole_number(1, 256));
  app.add_option("--served-timeout", a.request.served_timeout, "Seconds in which the server must answer one request")
      ->capture_default_str()
      ->check(whole_number(1, 86400));
  app.add_flag("--add-checkpoint", a.add_checkpoint,
               "Evaluate the bundle on another checkpoint of its geometry, such as an FP8 or AWQ twin of its model, "
               "and if the gates pass, add that checkpoint to those that the bundle may serve (checkpoints.json)")
      ->needs(bundle);
  app.add_flag("--check-only", a.check_only, "Check structure, hashes, orthogonality and, with --model, that it fits");
  app.add_option("--text", a.texts,
                 "Text to score: one UTF-8 document, or JSON rows whose texts are one after another (required, but for "
                 "--check-only, methods and plan); of several files each is gated by itself")
      ->type_name("FILE ...");
  add_row_options(app, a.request.rows);
  app.add_option(
         "--methods", a.request.methods,
         "Methods beside the bundle's (oscar-verify methods lists them), or all, or 2bit; oscar and others of "
         "oscar-fit are fitted from the bundle's statistics (default: bf16, without a bundle bf16,naive2,hadamard2)")
      ->delimiter(',')
      ->type_name("ID,...");
  app.add_option(
         "--compare", a.request.comparisons,
         "Windows of each method: its authors', common ones, or such that all take equal bytes (default: common)")
      ->delimiter(',')
      ->type_name("authors,common,bytes");
  app.add_option("--bits", a.request.bits,
                 "Bits per element for --compare bytes (default: those of the bundle's method)")
      ->type_name("B")
      ->check(real_number(0.01, 16.0));
  app.add_option("--windows", a.windows, "BF16 tokens at the start and at the end (default: the bundle's, or 64,256)")
      ->type_name("SINK,RECENT");
}

void add_measurement_options(CLI::App& app, VerifyArguments& a) {
  app.add_option("--path", a.path, "Whole sequences at once, token by token through the paged cache, or both")
      ->capture_default_str()
      ->check(CLI::IsMember({"prefill", "decode", "both"}));
  app.add_option("--decode-last", a.request.decode_last,
                 "With --path both: decode and score only the last tokens of each sequence; 0: all")
      ->capture_default_str()
      ->check(whole_number(0, kMostTokens));
  app.add_flag("--stream-layers", a.request.decoder.stream_layers,
               "Keep one layer's weights in memory, on a GPU three; same results");
  app.add_option("--context", a.request.context, "Tokens of each sequence")
      ->capture_default_str()
      ->check(whole_number(1, kMostTokens));
  app.add_option("--tokens", a.request.tokens, "Tokens of the text to use; 0: all")
      ->capture_default_str()
      ->check(whole_number(0, kMostTokens));
  app.add_option("--max-sequences", a.request.max_sequences, "Sequences to score; 0: all")
      ->capture_default_str()
      ->check(whole_number(0, kMostTokens));
  app.add_option("--tasks", a.request.tasks,
                 "Synthetic tasks: niah, niah-multikey, niah-multivalue, niah-multiquery, vt, or all")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--task-lengths", a.request.task_lengths, "Tokens of task prompts (default: the context)")
      ->delimiter(',')
      ->type_name("N,...")
      ->check(whole_number(1, kMostTokens));
  app.add_option("--task-prompts", a.request.task_prompts, "Prompts of each task and length")
      ->capture_default_str()
      ->check(whole_number(1, 10000));
  app.add_option("--layer-sequences", a.request.layer_sequences, "Sequences that layer errors are measured on")
      ->capture_default_str()
      ->check(whole_number(1, std::uint64_t{1} << 30));
  app.add_option("--bootstrap", a.request.bootstrap_samples, "Bootstrap samples of the confidence intervals")
      ->capture_default_str()
      ->check(whole_number(0, std::uint64_t{1} << 24));
}

void add_report_options(CLI::App& app, VerifyArguments& a) {
  app.add_option("--report,-o,--output", a.report, "Write the report as JSON")->type_name("FILE.json");
  app.add_option("--html", a.html, "Write the report as one HTML page")->type_name("FILE.html");
  app.add_option("--markdown", a.markdown, "Write a summary for a model card or pull request")->type_name("FILE.md");
  app.add_option("--junit", a.junit, "Write gates and checks as JUnit XML")->type_name("FILE.xml");
  app.add_option("--baseline", a.baseline, "Earlier report of the same model and text to compare with")
      ->type_name("FILE.json");
  app.add_option("--work-dir", a.work_dir,
                 "Where the state of the run is kept, so that it can go on when it was stopped (default: REPORT.work)")
      ->type_name("DIR");
  app.add_flag("--resume", a.request.resume, "Continue the run in the work directory, if there is one");
  app.add_flag("--overwrite", a.common.overwrite, "Replace reports that exist");
  app.add_flag("--dry-run", a.common.dry_run, "Print the plan and measure nothing");
  GateLimits& gates = a.request.gates;
  app.add_option("--max-kl", gates.max_kl,
                 "Gate: mean KL to BF16 of the bundle's method, nats (default, where no gate is named: " +
                     significant(kDefaultMaxKl, 3) + ")")
      ->group("Gates");
  app.add_option("--max-kl-p999", gates.max_kl_p999, "Gate: KL that one token in a thousand exceeds, nats")
      ->group("Gates");
  app.add_option("--max-ppl-ratio", gates.max_ppl_ratio, "Gate: perplexity over that of BF16")->group("Gates");
  app.add_option("--min-top1", gates.min_top1, "Gate: share of tokens with BF16's top token, 0 to 1")->group("Gates");
  app.add_option("--max-kl-increase", gates.max_kl_increase, "Gate: mean KL over that of --baseline, nats")
      ->group("Gates");
  app.add_flag("--no-gate", a.request.no_gate, "Measure without a gate")->group("Gates");
  app.add_option("--min-niah", gates.min_niah, "Gate: needle score at the worst length, 0 to 1")->group("Gates");
}

}  // namespace oscar
