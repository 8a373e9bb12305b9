// Describes a run: its plan in words, the facts of its report, its identity for a work directory, and its memory.
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>

#include "base/columns.h"
#include "base/hash.h"
#include "model/device.h"
#include "model/weights.h"
#include "report/number_text.h"
#include "text/text_hashes.h"
#include "verify/verification.h"

namespace oscar {
namespace {

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& item : list) text += (text.empty() ? "" : ", ") + item;
  return text;
}

// Bytes of weights in memory: all of them or, with streamed layers, the head and one layer. On a GPU the layers are one
// in use, one loading, and one whose memory is not yet free.
std::uint64_t weight_memory(const Checkpoint& checkpoint, const DecoderOptions& options) {
  const auto width = static_cast<std::uint64_t>(c10::elementSize(options.dtype));
  if (!options.stream_layers) return decoded_bytes(checkpoint, width);
  const std::vector<std::uint64_t> layers = layer_elements(checkpoint);
  const std::uint64_t largest = *std::max_element(layers.begin(), layers.end());
  const std::uint64_t all = std::accumulate(layers.begin(), layers.end(), std::uint64_t{0});
  const auto head = static_cast<std::uint64_t>(checkpoint.config().vocabulary * checkpoint.config().hidden);
  const std::uint64_t held = options.device.is_cuda() ? std::min(3 * largest, all) : largest;
  return width * (held + head) + dequantization_bytes(checkpoint, options.device);
}

// The first position at which every method reads quantized data, so that all methods are scored on the same affected
// tokens.
std::int64_t first_common_position(const MethodSelection& selection, const CacheWindows& windows,
                                   std::int64_t context) {
  std::int64_t first = first_scored_position(windows);
  for (const ComparedMethod& c : selection.methods) {
    if (!c.method.quantized) continue;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const CacheWindows& w = c.method.windows_of(side);
      first = std::max(first, w.sink + w.recent + w.flush - 1);
    }
  }
  return std::min(first, std::max(first_scored_position(windows), context * 3 / 4));
}

// The tokenizer is in no fingerprint; what it made of the text is.
std::string sequences_hash(const std::vector<std::vector<std::int32_t>>& sequences) {
  Sha256 hash;
  for (const auto& ids : sequences) hash.update(document_hash(ids));
  return hash.hex();
}

}  // namespace

std::int64_t Verification::first_scored() const {
  const std::int64_t first = first_common_position(selection_, request_.windows, set_.context);
  return request_.decode_last > 0 ? std::max(first, set_.context - request_.decode_last) : first;
}

// Of a sequence through the model.
std::int64_t Verification::passes() const {
  std::int64_t passes = 1;
  for (const ComparedMethod& c : selection_.methods) {
    passes += (request_.prefill && c.method.quantized ? 1 : 0) + (request_.decode && c.method.paged() ? 1 : 0);
  }
  return passes;
}

// Of all hidden states that are in memory at once.
std::uint64_t Verification::hidden_bytes() const {
  const std::int64_t together =
      (request_.decode && request_.decode_last == 0) || request_.decoder.stream_layers ? 8 : 1;
  return static_cast<std::uint64_t>(together * passes() * set_.context * checkpoint_.config().hidden) *
         c10::elementSize(request_.decoder.dtype);
}

std::string Verification::plan_text() const {
  const std::int64_t tokens = std::ssize(set_.sequences) * set_.context;
  const std::uint64_t weights = weight_memory(checkpoint_, request_.decoder);
  std::string list;
  for (const ComparedMethod& c : selection_.methods) {
    list += (list.empty() ? "" : ", ") + c.method.id;
    if (request_.comparisons.size() > 1 && c.method.quantized) list += " (" + c.comparison + ")";
  }
  std::string text =
      wrapped("methods    " + list + (evaluated_.empty() ? "" : " (bundles: " + joined(evaluated_) + ")"), 11);
  text += "sequences  " + std::to_string(set_.sequences.size()) + " of " + grouped(set_.context) + " tokens, " +
          grouped(set_.unused_tokens) + " of the text's " + grouped(set_.text_tokens) + " tokens unused\n";
  text += "passes     " + std::to_string(passes()) + " over " + grouped(tokens) + " tokens, and one over the first " +
          "sequence (null run)\n";
  if (!request_.served.empty()) {
    text += "served     " + request_.served + ": " + std::to_string(set_.sequences.size()) + " requests of " +
            grouped(set_.context - request_.served_tokens) + " tokens, " + grouped(request_.served_tokens) +
            " more generated after each\n";
  }
  for (const TaskSet& t : tasks_) {
    text += "task       " + t.task + ", " + std::to_string(t.prompts.size()) + " prompts of at most " +
            grouped(t.length) + " tokens\n";
  }
  text += "memory     about " + format_bytes(weights) + " of weights, " + format_bytes(hidden_bytes()) +
          " of hidden states, 0.5 GiB of logits and scores\n";
  return text;
}

std::vector<const KvMethod*> Verification::method_pointers() const {
  std::vector<const KvMethod*> list;
  for (const ComparedMethod& c : selection_.methods) list.push_back(&c.method);
  return list;
}

VerifyReport Verification::empty_report() const {
  const ModelConfig& model = checkpoint_.config();
  VerifyReport r{.tool_version = request_.tool_version, .command = request_.command};
  r.model = {checkpoint_.location().name,
             checkpoint_.fingerprint(),
             model.architecture,
             model.layers,
             model.query_heads,
             model.kv_heads,
             model.head_dim,
             model.vocabulary,
             model.max_position,
             model.latent.rope_dim};
  for (const EvaluatedBundle& b : bundles_) r.bundles.push_back(b.facts);
  for (std::size_t i = 0; i < r.bundles.size(); ++i) {
    r.bundles[i].row = bundles_[i].fitted.empty() ? evaluated_[i] : bundles_[i].fitted;
  }
  r.text = text_;
  if (texts_.size() > 1) r.texts = texts_;
  r.scoring.context = set_.context;
  r.scoring.sequences = std::ssize(set_.sequences);
  r.scoring.unused_tokens = set_.unused_tokens;
  r.scoring.first_position = first_scored();
  if (selection_.target_bits > 0) r.target_bits = selection_.target_bits;
  r.left_out = selection_.left_out;
  r.sink = request_.windows.sink;
  r.recent = request_.windows.recent;
  r.dtype = request_.decoder.dtype_name();
  r.device = request_.decoder.device.str();
  r.seed = request_.seed;
  r.bootstrap_samples = request_.bootstrap_samples;
  r.layer_error_sequences =
      std::min<std::int64_t>(std::max<std::int64_t>(request_.layer_sequences, 1), std::ssize(set_.sequences));
  return r;
}

// Weights and hidden states as in plan_text(), plus scores and libraries.
void Verification::require_memory() const {
  if (!request_.decoder.device.is_cuda()) return;
  const std::uint64_t weights = weight_memory(checkpoint_, request_.decoder) + (std::uint64_t{1} << 30);
  const bool weights_fit = weights <= free_device_bytes(request_.decoder.device);
  require_device_memory(request_.decoder.device, weights + hidden_bytes(),
                        weights_fit ? "a shorter --context or fewer --methods would fit"
                                    : "the weights take " + format_bytes(weights) + ": " +
                                          (request_.decoder.stream_layers ? "" : "pass --stream-layers, or ") +
                                          "use a GPU with more memory, or --device cpu");
}

Json Verification::run_identity() const {
  const VerifyRequest& r = request_;
  Json bundle = Json::array();
  for (const EvaluatedBundle& b : bundles_) {
    const auto clip = [](const std::optional<double>& rho) { return rho ? Json(*rho) : Json(nullptr); };
    bundle.push_back({{"source", b.facts.source},
                      {"served_as", b.facts.served_as},
                      {"clip", {clip(b.facts.key_clip), clip(b.facts.value_clip)}}});
    for (const auto& [name, hash] : b.facts.sha256) bundle.back()[name] = hash;
  }
  Json methods = Json::array(), windows = Json::array({r.windows.sink, r.windows.recent});
  for (const ComparedMethod& c : selection_.methods) methods.push_back(c.method.id + " (" + c.comparison + ")");
  Json identity = {{"tool_version", r.tool_version},
                   {"model", checkpoint_.fingerprint()},
                   {"bundle", bundle},
                   {"text", text_.sha256},
                   {"text_tokens", sequences_hash(set_.sequences)},
                   {"threads", at::get_num_threads()},
                   {"options",
                    {{"context", r.context},
                     {"tokens", r.tokens},
                     {"max_sequences", r.max_sequences},
                     {"path", r.prefill && r.decode ? "both"
                              : r.prefill           ? "prefill"
                                                    : "decode"},
                     {"windows", windows},
                     {"compare", r.comparisons},
                     {"bits", r.bits ? Json(*r.bits) : Json(nullptr)},
                     {"methods", methods},
                     {"tasks", r.tasks},
                     {"task_lengths", r.task_lengths},
                     {"task_prompts", r.task_prompts},
                     {"layer_sequences", r.layer_sequences},
                     {"seed", r.seed},
                     {"dtype", r.decoder.dtype_name()},
                     {"device", r.decoder.device.str()}}}};
  if (!r.served.empty()) identity["options"]["served"] = {r.served, r.served_tokens};
  if (r.decode_last > 0) identity["options"]["decode_last"] = r.decode_last;
  if (r.decoder.stream_layers) identity["options"]["stream_layers"] = true;  // sequences then run in groups
  if (r.ranks != nullptr) {  // all ranks have one identity: rank 0 uses the others' records as its own
    identity["options"]["ranks"] = r.ranks->count();
    identity["options"]["device"] = r.decoder.device.is_cpu() ? "cpu" : "cuda";
  }
  return identity;
}

}  // namespace oscar
