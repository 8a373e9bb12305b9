// Everything one run of oscar-verify found, as plain data: what report.json, report.html and the terminal table show.
// No time stamps: equal inputs and options give equal reports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bundle/curves.h"
#include "report/metrics.h"
#include "text/seen_text.h"

namespace oscar {

inline constexpr int kReportFormatVersion = 1;

struct ModelFacts {
  std::string name, fingerprint, architecture;
  std::int64_t layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0, vocabulary = 0, max_position = 0;
  // Of latent attention, whose tokens cache one vector of head_dim channels: so many of the latent, and so many that
  // turn behind it; 0: keys and values apart.
  std::int64_t latent_rank = 0, latent_rotated = 0;
};

// What one layer clips with: [1 or Hkv] ratios of keys and values; 0: off.
struct LayerClip {
  std::int64_t layer = 0;
  std::vector<double> key, value;
};

struct BundleFacts {
  std::string row;     // id of its rows among the methods
  std::string kind;    // bundle | published
  std::string source;  // directory name, or "K.pt + V.pt"
  std::string method, scope, encoder;
  std::string model_fingerprint;               // empty: the files do not say
  bool fingerprint_matches = false;            // false when it is empty, too
  std::map<std::string, std::string> sha256;   // file name -> hash
  std::optional<double> key_clip, value_clip;  // the ratio that ran in all layers and heads, 0: off; empty: they differ
  std::string clip_source;                     // bundle | option | file | default
  std::vector<LayerClip> layer_clips;          // where a ratio differs between layers or heads
  std::string served_as;                       // the form that was judged: export/served_form.h
  std::vector<std::string> served_changes;     // what the form changes of the bundle as fitted; empty: nothing
  std::optional<SeenText> calibration;         // the text against the calibration prompts; empty: no record of them
  std::int64_t longest_distance = 0;           // of a key to its query in the calibration; 0: not recorded
  std::optional<PredictedKl> prediction;       // its own, where curves were measured and the form changes nothing
  std::optional<Curves> curves;                // that its widths were allocated by
  std::int64_t calibration_tokens = 0, longest_calibration = 0;  // in all, and of one sequence; 0: not recorded
  std::vector<Widths> key_widths, value_widths;                  // [L] bits of the blocks; empty where a side has none
  bool simulated() const { return served_as == "simulation"; }   // kSimulatedForm of served_form.h
};

// Spectrum of the keys or values of one layer on the scored text, before and after a bundle's transform: variances of
// the d channels, sorted in descending order, mean over KV heads. The flatter, the better one scale fits a row.
struct LayerSpectrum {
  std::int64_t layer = 0;
  std::string side;  // key | value
  std::vector<double> before, after;
};

// One token of the scored text, and what is most probable in its place; as text, which may be any bytes.
struct PassageToken {
  std::string text, baseline, coded;
  bool differs = false;  // the predictions are two tokens
};

struct TextFacts {
  std::string name, sha256;
  std::int64_t tokens = 0;  // of the whole file
};

struct ScoringFacts {
  std::int64_t context = 0;  // tokens of each sequence
  std::int64_t sequences = 0;
  std::int64_t unused_tokens = 0;   // the tail that fills no sequence, and what --tokens left out
  std::int64_t first_position = 0;  // sink + recent: the first query that sees a quantized key
  std::int64_t tokens = 0;          // scored
  double fraction = 0;              // of the positions that predict a token
};

// Of the query heads that read one KV head; KV head -1: of all.
struct HeadError {
  std::int64_t head = -1;
  double k_logit = 0;              // relative RMS error of q k^T over coded keys, each query's mean removed
  double k_logit_correlation = 1;  // of the same logits
  double attention_kl = 0;         // mean KL of the attention weights, nats
  double attention_output = 0;     // |o' - o| / |o| over scored positions, before W_O
  double sink_mass_lost = 0;       // attention weight that moves off the first tokens, mean over queries
  double recent_mass_lost = 0;     // and off the recent ones
};

struct LayerError {
  std::int64_t layer = 0;
  HeadError mean;               // of all heads
  double projected_output = 0;  // |o' - o| / |o| behind W_O
  std::vector<HeadError> heads;
};

struct DepthScore {
  double from = 0, to = 0;   // depth of the needle, 0..1 of the haystack
  std::int64_t prompts = 0;  // reference strings that BF16 finds
  std::int64_t solved = 0;
};

// One task at one length, for one method.
struct TaskScore {
  std::string task;
  std::int64_t length = 0;      // tokens of prompt and answer, at most
  std::int64_t prompts = 0;     // written
  std::int64_t n = 0;           // reference strings that the BF16 cache finds: the ones that count
  std::int64_t solved = 0;      // of those n
  std::optional<double> score;  // solved / n; empty when n is 0
  Interval interval{0, 1};      // of score, Wilson's at 95 %, the n strings taken as independent
  std::vector<DepthScore> depths;
  std::int64_t references = 0;  // strings that the prompts ask for
};

// Bytes of the BF16 cache over those of the method, for one sequence of this context, all layers.
struct CacheRatio {
  std::int64_t context = 0;  // tokens
  double ratio = 0;
};

struct MethodReport {
  std::string id, source;
  std::string comparison;  // authors | common | bytes: whose windows, or whose bits, the method runs with
  std::string settings;    // windows and groups in words
  std::string path;        // prefill | decode
  bool quantized = true;
  bool judged = false;                // gates apply to it
  double code_bits = 0;               // bits per element of a quantized token, parameters included
  double bits_per_element = 0;        // at the tested context, windows included
  double token_bytes = 0;             // of a quantized token in one layer, parameters included; 0: not counted
  std::uint64_t allocated_bytes = 0;  // pages and windows of one sequence of the tested context, all layers
  QualityMetrics quality;
  std::vector<PositionBucket> by_position;
  std::vector<LayerError> layers;
  std::vector<TaskScore> tasks;
  std::vector<CacheRatio> ratios;    // of a quantized method, at the contexts that the model has
  std::optional<bool> passes_gates;  // of a judged row; empty for others, and where no gate was set
};

// A method that was asked for and has no row.
struct LeftOut {
  std::string id, comparison, reason;
};

// One figure against that of an earlier report.
struct BaselineChange {
  std::string method, comparison, path;
  double kl_before = 0, kl_now = 0, ppl_ratio_before = 0, ppl_ratio_now = 0;
};

struct GateResult {
  std::string name;  // max_kl | max_ppl_ratio | min_top1 | min_niah | max_kl_increase
  std::string method, path;
  double limit = 0;
  std::optional<double> value;  // empty: could not be measured, which fails
  bool pass = false;
  std::optional<double> bound{};  // end of the confidence interval that must keep the limit; empty: value must
  std::string reason{};           // a value within its limit fails all the same: why, and what to do
};

struct SelfCheck {
  std::string name;    // null_run | negative_control | writer_reader | prefill_decode | drift | prediction
  std::string detail;  // one sentence
  std::optional<double> value, limit;
  std::optional<bool> pass;  // empty: not applicable in this run; detail says why
};

struct VerifyReport {
  std::string tool_version;
  std::string command;  // that repeats the run
  ModelFacts model;
  std::vector<BundleFacts> bundles;
  TextFacts text;
  ScoringFacts scoring;
  std::int64_t sink = 64, recent = 256;
  std::string dtype, device;
  std::uint64_t seed = 0;
  std::int64_t bootstrap_samples = 0;
  double bootstrap_level = 0.95;
  std::int64_t layer_error_sequences = 0;
  std::optional<double> target_bits;  // of the comparison at equal bytes
  std::vector<MethodReport> methods;
  std::vector<LeftOut> left_out;
  std::vector<LayerSpectrum> spectra;  // of the first bundle; empty without one
  std::vector<PassageToken> passage;   // of the first sequence, with the first bundle; empty without text or bundle
  std::string baseline;                // name of the earlier report; empty: none
  std::int64_t baseline_tokens = 0;    // that both reports scored: those of the earlier one
  std::vector<BaselineChange> changes;
  std::vector<GateResult> gates;
  bool default_gate = false;       // no gate was asked for: the one that oscar-verify sets by itself
  std::string undecided;           // why that one cannot tell, and what to do; then there is no gate. Else empty
  std::vector<std::string> steps;  // what to do about a failed gate, the likeliest first
  std::vector<SelfCheck> checks;
  bool pass = false;  // every gate and every self check that ran
};

// "max_kl of oscar (prefill): 0.0123, 95% interval to 0.0201, limit 0.05; ...reason": one gate in words.
std::string gate_text(const VerifyReport& report, const GateResult& gate);
// The run in one sentence for each judged row: tokens that change, perplexity, memory, and at its end PASS, FAIL, "no
// gate" or "no verdict". Without a judged row none.
std::vector<std::string> verdict_sentences(const VerifyReport& report);
// "2.9x smaller at 2K, 6.7x at 128K"; empty without ratios.
std::string memory_text(const MethodReport& method);
// The three judged layers that lose most, with their widths: "11 (.69, keys 0-0-0-0, values 0-0-0-0)"; empty without
// layer errors.
std::string worst_layers_text(const VerifyReport& report, const MethodReport& method);
// The judged row of a bundle; null: none.
const BundleFacts* bundle_of(const VerifyReport& report, const MethodReport& method);

// The tasks of the report at their lengths, each once.
std::vector<const TaskScore*> task_columns(const VerifyReport& report);
// "88% (53 to 98) of 8": the score with its interval; the task must have one.
std::string share_text(const TaskScore& task);
// What "+-" and brackets in tables stand for, without a full stop.
std::string interval_note(const VerifyReport& report);
// For each bundle that was calibrated on the text: "the text shares passages with the prompts ... flatters it".
std::vector<std::string> seen_notes(const VerifyReport& report);
// "DIR was calibrated on keys up to ..., and contexts of ... are scored"; empty: no more is scored, or not known.
std::string distance_note(const BundleFacts& bundle, std::int64_t context);
// "1.8": KL over the last quarter of the positions over that of the second (metrics.h); "-" for BF16 and for rows
// without positions in either quarter.
std::string growth_text(const MethodReport& method);
// What bits are per element of: "K and V", or the one vector of latent attention.
std::string element_text(const VerifyReport& report);
// With latent attention: "one vector of 512 + 64 channels a token and layer takes, in bytes: bf16 1152, ..."; else
// empty.
std::string latent_text(const VerifyReport& report);
// "niah 2048: the BF16 cache finds 2 of 3 references; the others count for no method"
std::string baseline_share(const TaskScore& task);

// The files. JSON: schemas/report.schema.json. HTML: one self-contained page.
std::string report_json(const VerifyReport& report);
std::string report_html(const VerifyReport& report);
std::string report_markdown(const VerifyReport& report);  // for a model card or a pull request
std::string report_junit(const VerifyReport& report);     // one test case for each gate and each check
// For the terminal, at most 100 columns: the figures that decide, gates, next steps, and the verdict as the last line.
std::string report_table(const VerifyReport& report);
// The same with every column, note and self check, as wide as they are.
std::string report_details(const VerifyReport& report);

}  // namespace oscar
