// The length of packed sequences: choose_sequences() of collect_run.h.
#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "base/formatted.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/run_directory.h"
#include "collect/collect_phases.h"
#include "collect/reading_range.h"
#include "model/device.h"
#include "pipeline/collect/collect_run.h"

namespace oscar {
namespace {

// The length of a resumed run, from its state or its output.
std::optional<std::int64_t> earlier_length(const CollectOptions& options) {
  if (!options.resume) return std::nullopt;
  const auto length_in = [](const Json& record, const std::string& where) {
    return json_int_within(record, "seq_len", where, 1, std::int64_t{1} << 24);
  };
  const fs::path run = work_directory_of(options) / "run.json";
  if (fs::exists(run)) {
    const Json record = parse_run_record(read_file(run), run.string());
    if (record["options"].value("context", Json(0)) == options.context) {
      return length_in(record["options"], run.string());
    }
  }
  if (!fs::exists(options.output)) return std::nullopt;
  const Statistics found = load_part(options.output);
  const Json parts = found.metadata.value("parts", Json::array());
  if (parts.size() != 1 || !parts[0].contains("options")) return std::nullopt;
  if (parts[0]["options"].value("context", Json(0)) != options.context) return std::nullopt;
  return length_in(parts[0]["options"], options.output.string());
}

// Halves the length until a run fits into the total memory of the machine or its GPU. Memory in use does not count, so
// that all shards and ranks get the same length.
std::int64_t length_in_memory(const CollectArguments& a, const Checkpoint& checkpoint, const PromptSet& prompts) {
  CollectOptions options = a.options;
  const std::uint64_t all = all_memory_bytes(options.device) / 10 * 9;
  for (;; options.seq_len /= 2) {
    const TokenPlan plan = make_token_plan(prompts, options.tokens, options.seq_len, true);
    const CollectEstimate estimate = estimate_bytes(checkpoint, plan, options);
    const std::uint64_t needed = options.device.is_cuda() ? estimate.device_bytes : estimate.peak_bytes;
    if (all == 0 || needed <= all || options.seq_len / 2 < kLeastRange) return options.seq_len;
  }
}

std::int64_t read_range(const CollectArguments& a, Checkpoint& checkpoint, const PromptSet& prompts,
                        std::int64_t length) {
  const CollectOptions& options = a.options;
  const TokenPlan plan = make_token_plan(prompts, std::min(options.tokens, length), length, true);
  if (tried_lengths(plan.longest).empty()) return length;
  const Timeline::Phase measuring(options.timeline, phase::kRange);
  checkpoint.set_run_length(plan.longest);
  Progress progress("testing contexts", static_cast<std::uint64_t>(checkpoint.config().layers), "layers");
  const auto step = [&](std::int64_t layer) {
    if (layer <= 1) progress.set_note("of " + std::to_string(plan.longest) + " tokens");
    progress.advance(1);
    if (interrupt_requested()) {
      throw InterruptedError("interrupted before anything was collected; run the command again");
    }
  };
  const ReadingRange range =
      reading_range(checkpoint, a.range_decoding(), piece_ids(prompts, plan.pieces[0], 0, plan.longest), step);
  progress.finish();
  if (range.beyond == 0) return length;
  log_info("the model predicts the end of " + std::to_string(range.beyond) + " tokens worse from all of them, " +
           formatted("%.2f nats a token, and %.2f", range.beyond_loss, range.beyond_short) + " from the last " +
           std::to_string(kShortContext) + " only, so it was not trained for as many: " + "sequences are packed to " +
           std::to_string(range.tokens) + " tokens (--context sets the length)");
  return range.tokens;
}

}  // namespace

void choose_sequences(CollectArguments& a, Checkpoint& checkpoint, const PromptSet& prompts, bool dry) {
  CollectOptions& options = a.options;
  if (options.context == 0 || a.seq_len > 0) return;
  std::int64_t length = options.seq_len;
  if (is_first_rank(options.ranks)) {
    if (const std::optional<std::int64_t> earlier = earlier_length(options)) {
      length = *earlier;
    } else {
      length = length_in_memory(a, checkpoint, prompts);
      if (length < options.seq_len) {
        log_info("sequences of " + std::to_string(options.seq_len) +
                 " tokens do not fit into memory: they are packed to " + std::to_string(length));
      }
      if (a.context == 0 && !dry) length = read_range(a, checkpoint, prompts, length);
    }
  }
  if (options.ranks != nullptr) length = std::stoll(options.ranks->broadcast(std::to_string(length)));
  options.seq_len = length;
  choose_tokens(a);
}

}  // namespace oscar
