// All results of one oscar-verify run as plain data, for report.json, report.html and the terminal table. Contains no
// time stamps: equal inputs and options give equal reports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bundle/curves.h"
#include "bundle/report_format.h"
#include "report/metrics.h"
#include "text/text_hashes.h"

namespace oscar {

struct ModelFacts {
  std::string name, fingerprint, architecture;
  std::int64_t layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0, vocabulary = 0, max_position = 0;
  std::int64_t rope_dim = 0;  // latent attention: BF16 channels beside the head_dim that a token caches; 0: others
};

// The clip ratios of one layer: [1 or Hkv] for keys and values; 0: off.
struct LayerClip {
  std::int64_t layer = 0;
  std::vector<double> key, value;
};

inline constexpr const char* kFittedKind = "fitted";

struct BundleFacts {
  std::string row;     // id of its method rows
  std::string kind;    // bundle | published | fitted: for comparison, from the statistics of a bundle
  std::string source;  // directory name, or "K.pt + V.pt"
  std::string method, scope, encoder;
  std::string model_fingerprint;               // empty: not recorded in the files
  bool fingerprint_matches = false;            // also false if it is empty
  std::map<std::string, std::string> sha256;   // file name -> hash
  std::optional<double> key_clip, value_clip;  // ratio in all layers and heads, 0: off; empty: they differ
  std::string clip_source;                     // bundle | option | file | default
  std::vector<LayerClip> layer_clips;          // layers with ratios that differ between layers or heads
  std::string served_as;                       // the evaluated form: export/served_form.h
  std::vector<std::string> served_changes;     // what the form changes in the fitted bundle; empty: nothing
  std::optional<SeenText> calibration;         // comparison of the text with the calibration prompts; empty: prompts
                                               // not recorded
  std::int64_t longest_distance = 0;           // longest key-query distance in calibration; 0: not recorded
  std::optional<PredictedKl> prediction;       // the bundle's prediction, if curves were measured and the form changes
                                               // nothing
  std::optional<Curves> curves;                // the curves that its bit widths were allocated from
  std::int64_t calibration_tokens = 0, longest_calibration = 0;  // in total, and of the longest sequence; 0: not
                                                                 // recorded
  std::vector<Widths> key_widths, value_widths;                  // [L] bits of the groups; empty for a side without
                                                                 // groups
  bool simulated() const { return served_as == "simulation"; }   // kSimulatedForm of served_form.h
};

// A running server whose answers are the candidate's rows.
struct ServedFacts {
  std::string url, runs, model;  // runs: vllm | sglang
  std::int64_t generated = 0;    // tokens after each prompt
  std::int64_t top = 0;          // most probable tokens of each place, whose KL is measured
};
inline constexpr const char* kServedRow = "served";  // id of its rows
// "what vllm at URL answers for MODEL; KL of ...".
std::string served_text(const ServedFacts& served);

struct TextFacts {
  std::string name, sha256;  // of several texts: all names, and a hash of their hashes
  std::int64_t tokens = 0;   // in the entire file
  std::int64_t sequences = 0;
};

struct ScoringFacts {
  std::int64_t context = 0;  // tokens per sequence
  std::int64_t sequences = 0;
  std::int64_t unused_tokens = 0;   // the tail that fills no sequence, and tokens dropped by --tokens
  std::int64_t first_position = 0;  // sink + recent: the first query that sees a quantized key
  std::int64_t tokens = 0;          // scored
  double fraction = 0;              // share of the positions that predict a token
};

// Errors of the query heads of one KV head; KV head -1: all.
struct HeadError {
  std::int64_t head = -1;
  double k_logit = 0;              // relative RMS error of q k^T over quantized keys, without each query's mean
  double k_logit_correlation = 1;  // for the same logits
  double attention_kl = 0;         // mean KL of the attention weights, in nats
  double attention_output = 0;     // |o' - o| / |o| over scored positions, before W_O
  double sink_mass_lost = 0;       // attention weight lost from the sink window, mean over queries
  double recent_mass_lost = 0;     // the same for the recent window
};

struct LayerError {
  std::int64_t layer = 0;
  HeadError mean;               // over all heads
  double projected_output = 0;  // |o' - o| / |o| after W_O
  std::vector<HeadError> heads;
};

struct DepthScore {
  double from = 0, to = 0;   // depth of the needle, 0..1 of the haystack
  std::int64_t prompts = 0;  // reference strings that the BF16 baseline finds
  std::int64_t solved = 0;
};

// Result of one task at one length for one method.
struct TaskScore {
  std::string task;
  std::int64_t length = 0;      // maximum tokens of prompt and answer
  std::int64_t prompts = 0;     // generated prompts
  std::int64_t n = 0;           // reference strings that the BF16 cache finds; only these count
  std::int64_t solved = 0;      // found of those n
  std::optional<double> score;  // solved / n; empty when n is 0
  Interval interval{0, 1};      // of score: Wilson at 95 %, treating the n strings as independent
  std::vector<DepthScore> depths;
  std::int64_t references = 0;  // strings that the prompts request
};

// Bytes of the BF16 cache divided by bytes of the method's cache, for one sequence of this context, all layers.
struct CacheRatio {
  std::int64_t context = 0;  // tokens
  double ratio = 0;
};

// One of several scored texts.
struct TextQuality {
  std::string text;  // its name
  std::int64_t sequences = 0;
  QualityMetrics quality;
};

// KL to the BF16 cache that no code causes (verify/plain_scores.h).
struct NoiseFacts {
  std::int64_t tokens = 0;           // scored
  std::optional<double> arithmetic;  // of the BF16 cache in BF16 arithmetic; empty: not measured
  std::vector<std::pair<std::string, double>> without_codes;  // of each bundle's row, with every token in BF16
};

struct MethodReport {
  std::string id, source;
  std::string comparison;  // authors | common | bytes: the source of the method's windows or bits
  std::string settings;    // windows and groups in words
  std::string path;        // prefill | decode
  bool quantized = true;
  bool evaluated = false;             // a row of a bundle
  bool beside = false;                // of a bundle after the first: its gates are shown and decide nothing
  double code_bits = 0;               // bits per element of a quantized token, including parameters; 0: unknown
  double bits_per_element = 0;        // at the evaluated context, including windows; 0: unknown
  double token_bytes = 0;             // per quantized token in one layer, including parameters; 0: not counted
  std::uint64_t allocated_bytes = 0;  // pages and windows of one sequence at the evaluated context, all layers
  QualityMetrics quality;
  std::optional<RecallMetrics> recall;  // empty: the text repeats no phrase from before the BF16 window
  std::vector<PositionBucket> by_position;
  std::vector<LayerError> layers;
  std::vector<TaskScore> tasks;
  std::vector<CacheRatio> ratios;    // for a quantized method, at the contexts that the model supports
  std::optional<bool> passes_gates;  // for rows of bundles; empty for others, or if no gate was set
  std::vector<TextQuality> texts;    // on each text of a run with several; otherwise empty
  bool candidate() const { return evaluated && !beside; }  // gates decide by this row
};

// A requested method without a row.
struct LeftOut {
  std::string id, comparison, reason;
};

// One result compared with an earlier report.
struct BaselineChange {
  std::string method, comparison, path;
  double kl_before = 0, kl_now = 0, ppl_ratio_before = 0, ppl_ratio_now = 0;
};

struct GateResult {
  std::string name;  // max_kl | max_kl_p999 | max_ppl_ratio | min_top1 | min_niah | max_kl_increase
  std::string method, path;
  double limit = 0;
  std::optional<double> value;  // empty: could not be measured, so the gate fails
  bool pass = false;
  std::optional<double> bound{};  // end of the confidence interval that must be within the limit; empty: the value must
                                  // be
  std::string reason{};           // why a value within its limit still fails, and what to do
  std::string text{};             // of several texts, the one that the value is of
  bool decides = true;            // false: of a row beside the candidate
};

struct SelfCheck {
  std::string name;    // null_run | negative_control | writer_reader | prefill_decode | drift | prediction
  std::string detail;  // one sentence
  std::optional<double> value, limit;
  std::optional<bool> pass;  // empty: not applicable in this run; detail gives the reason
};

struct VerifyReport {
  std::string tool_version;
  std::string command;  // repeats the run
  std::string date;     // of the run, "2026-11-28"; only in the HTML report, whose other bytes repeat
  ModelFacts model;
  std::vector<BundleFacts> bundles;
  std::optional<ServedFacts> served;
  TextFacts text;
  std::vector<TextFacts> texts;  // each of several; otherwise empty
  ScoringFacts scoring;
  std::int64_t sink = 64, recent = 256;
  std::string dtype, device;
  std::uint64_t seed = 0;
  std::int64_t bootstrap_samples = 0;
  double bootstrap_level = 0.95;
  std::int64_t layer_error_sequences = 0;
  std::optional<double> target_bits;  // for the comparison at equal bytes
  std::vector<MethodReport> methods;
  std::optional<NoiseFacts> noise;  // empty: not measured
  std::vector<LeftOut> left_out;
  std::string baseline;              // name of the earlier report; empty: none
  std::int64_t baseline_tokens = 0;  // tokens scored in both reports: the earlier report's tokens
  std::vector<BaselineChange> changes;
  std::vector<GateResult> gates;
  bool default_gate = false;       // no gate was requested, so oscar-verify set its default gate
  std::string undecided;           // why the default gate cannot decide, and what to do; there is then no gate.
                                   // Otherwise empty
  std::vector<std::string> steps;  // steps after a failed gate, the most likely first
  std::vector<SelfCheck> checks;
  bool pass = false;  // every gate and every self-check that ran
};

// "max_kl of oscar (prefill): 0.0123, 95% interval to 0.0201, limit 0.05; ...reason": one gate in words.
std::string gate_text(const VerifyReport& report, const GateResult& gate);
// "3.6x": bytes of the BF16 row divided by this row's; "-": unknown.
std::string smaller_text(const VerifyReport& report, const MethodReport& method);
struct Verdict {
  std::string sentence;
  std::optional<bool> pass;  // empty: no gate
};
std::vector<Verdict> verdicts(const VerifyReport& report);
// One sentence per row of a bundle, the candidate's last: changed tokens, perplexity, memory, and at the end PASS,
// FAIL, "no gate" or "no verdict"; of other bundles "would pass" or "would fail". Empty without a bundle.
std::vector<std::string> verdict_sentences(const VerifyReport& report);
// One sentence per row of a bundle whose text repeats phrases (metrics.h).
std::vector<std::string> recall_sentences(const VerifyReport& report);
// "2.9x smaller at 2K, 6.7x at 128K"; empty without ratios.
std::string memory_text(const MethodReport& method);
// The three layers of a bundle's row with the largest loss, with their bit widths: "11 (.69, keys 0-0-0-0, values
// 0-0-0-0)". Empty without layer errors.
std::string worst_layers_text(const VerifyReport& report, const MethodReport& method);
// The bundle of a row; null: none.
const BundleFacts* bundle_of(const VerifyReport& report, const MethodReport& method);

// The tasks of the report at each length, without repeats.
std::vector<const TaskScore*> task_columns(const VerifyReport& report);
// "KL of the BF16 cache in BF16 arithmetic 0.00019, best without codes 2.3e-05, on 1,727 tokens"; empty: not measured.
std::string noise_text(const VerifyReport& report);
// "88% (53 to 98) of 8": the score with its interval; the task must have one.
std::string share_text(const TaskScore& task);
// Explains "+-" and brackets in tables, without a period.
std::string interval_note(const VerifyReport& report);
// For each bundle that was calibrated on the text: "TEXT shares passages with the prompts ... than on unseen text".
std::vector<std::string> seen_notes(const VerifyReport& report);
// "DIR was calibrated on keys up to ..., and contexts of ... are scored". Empty if no longer context is scored, or if
// unknown.
std::string distance_note(const BundleFacts& bundle, std::int64_t context);
// "1.8": KL in the last quarter of positions divided by KL in the second (metrics.h). "-" for BF16 and for rows without
// positions in either quarter.
std::string growth_text(const MethodReport& method);
// What "bits per element" counts: "K and V", or what latent attention caches.
std::string element_text(const VerifyReport& report);
// "niah 2048: the BF16 cache finds 2 of 3 references; the others count for no method"
std::string baseline_share(const TaskScore& task);

// The report files. JSON: schemas/report.schema.json. HTML: one self-contained page.
std::string report_json(const VerifyReport& report);
std::string report_html(const VerifyReport& report);
std::string report_markdown(const VerifyReport& report);  // for a model card or a pull request
std::string report_junit(const VerifyReport& report);     // one test case per gate and per check
// For the terminal, at most 100 columns: the deciding numbers, gates, next steps, and the verdict as the last line.
std::string report_table(const VerifyReport& report);
// The same with every column, note and self-check, at full width.
std::string report_details(const VerifyReport& report);

}  // namespace oscar
