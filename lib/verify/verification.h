// One run of oscar-verify. A plan refuses invalid requests before any long work; then the work runs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "bundle/bundle.h"
#include "cache/kv_method.h"
#include "checkpoint/checkpoint.h"
#include "distributed/ranks.h"
#include "model/decoder.h"
#include "report/report.h"
#include "server/server.h"
#include "tasks/task.h"
#include "text/prompts.h"
#include "text/sequences.h"
#include "text/tokenizer/tokenizer.h"
#include "verify/baseline_report.h"
#include "verify/comparison.h"
#include "verify/gates.h"
#include "verify/runner.h"
#include "verify/verify_work.h"

namespace oscar {

struct VerifyRequest {
  std::vector<fs::path> texts;  // each is scored on its own terms: its own --tokens and --max-sequences, its own gates
  RowSettings rows;             // of texts that are files of rows
  // Empty: bf16, naive2, hadamard2 and the bundle's method; "all", "2bit": see comparison.h.
  std::vector<std::string> methods;
  std::vector<std::string> comparisons{"common"};
  std::optional<double> bits;  // target of the comparison at equal bytes
  bool prefill = true, decode = false;
  std::int64_t decode_last = 0;  // tokens per sequence on the decode path, the only ones scored; 0: all
  std::int64_t context = 2048;
  std::int64_t tokens = 32768;     // from the text, at most; 0: all
  std::int64_t max_sequences = 0;  // 0: all
  CacheWindows windows;
  std::vector<std::string> tasks;
  std::vector<std::int64_t> task_lengths;  // empty: the context
  std::int64_t task_prompts = 20;          // per task and length
  std::int64_t layer_sequences = 2;
  std::int64_t bootstrap_samples = 2000;
  bool no_gate = false;  // do not set a default gate
  GateLimits gates;
  fs::path baseline;  // earlier report to compare with; empty: none
  std::uint64_t seed = 0;
  DecoderOptions decoder;
  bool bfloat16_noise = false;        // measure_noise() with BF16 arithmetic, which is slow without instructions for it
  std::string command, tool_version;  // recorded in the report
  fs::path work_dir;                  // stores the state of the run; empty: not stored
  bool resume = false;                // continue the run in work_dir
  std::string resume_command;         // for the message of an interrupted run
  Timeline* timeline = nullptr;       // verify_phases.h; null: measures nothing
  std::string served;                 // URL of a running server, whose answers are the candidate; empty: none
  std::int64_t served_tokens = 64;    // that it generates after each prompt
  std::int64_t served_requests = 1;   // at once
  std::int64_t served_timeout = 600;  // seconds for the answer to one request
  Ranks* ranks = nullptr;             // ranks that share sequences and prompts; each needs a folder in work_dir
};

// A bundle of the request. The first is the candidate: gates decide by it.
struct EvaluatedBundle {
  const Bundle* bundle = nullptr;
  BundleFacts facts;
  // A method that was fitted for comparison (pipeline/verify/verify_source.h) and is no bundle of the request: the id
  // of its row. Such entries come last.
  std::string fitted;
};

class Verification {
 public:
  // Makes all checks that can refuse the request (UsageError, InputError). Reads the text but no weights, and the
  // tokenizer only for tasks and for text that is not rows of ids. checkpoint, tokenizer and bundles must outlive the
  // object. Rows of a single bundle are named after its method, rows of several after the bundles.
  Verification(const Checkpoint& checkpoint, const LazyTokenizer& tokenizer, std::vector<EvaluatedBundle> bundles,
               VerifyRequest request);

  // For --dry-run: sequences, passes and memory.
  std::string plan_text() const;
  // Loads the weights and measures. With ranks, the first one gets the report and the others an empty one.
  VerifyReport run();
  void finish();  // call after writing the reports; removes the state in work_dir

 private:
  Json run_identity() const;  // everything that affects the measurement
  VerifyReport measure();
  RunnerOptions runner_options(const VerifyReport& report) const;
  MethodReport method_report(const RunnerResult& result, std::size_t row, const VerifyReport& report,
                             const BootstrapOptions& bootstrap,
                             const std::vector<std::vector<std::int64_t>>& repeated) const;
  // Rows of what the server answers; their scores follow those of the other rows.
  std::vector<std::vector<SequenceScores>> add_served(Decoder& decoder, VerifyReport& report,
                                                      const BootstrapOptions& bootstrap) const;
  void run_tasks(Decoder& decoder, std::vector<MethodReport>& rows);
  void add_quality(MethodReport& m, const std::vector<SequenceScores>& scores, const BootstrapOptions& bootstrap) const;
  void check_request() const;
  void choose_methods();
  void check_decode_path() const;
  void check_tasks();
  void choose_gate();
  bool has_candidate() const { return !evaluated_.empty() || !request_.served.empty(); }
  void read_texts(const LazyTokenizer& tokenizer);
  void add_text(const fs::path& file, SequenceOptions options, const LazyTokenizer& tokenizer);
  void compare_calibration(const std::string& name, const std::vector<std::int32_t>& ids,
                           const std::vector<std::int32_t>& scored);
  void require_memory() const;        // EnvironmentError, with what would fit, if the GPU has too little memory
  std::int64_t first_scored() const;  // first scored position
  std::int64_t passes() const;
  std::uint64_t hidden_bytes() const;
  VerifyReport empty_report() const;
  std::vector<const KvMethod*> method_pointers() const;

  const Checkpoint& checkpoint_;
  std::vector<EvaluatedBundle> bundles_;
  VerifyRequest request_;
  MethodSelection selection_;
  KvMethod baseline_;
  std::vector<std::string> evaluated_;  // ids of the bundles' rows; empty without a bundle
  SequenceSet set_;
  std::vector<TaskSet> tasks_;
  TextFacts text_;                // of all texts together
  std::vector<TextFacts> texts_;  // in the order of their sequences
  std::optional<BaselineReport> earlier_;
  std::optional<Server> server_;
  std::unique_ptr<VerifyWork> work_;
  bool default_gate_ = false;
};

}  // namespace oscar
