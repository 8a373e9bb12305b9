#include "pipeline/fit/fit_text.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/output_file.h"
#include "generate/write_text.h"
#include "model/device.h"
#include "model/weights.h"
#include "pipeline/common/device_choice.h"

namespace oscar {

OwnText::OwnText(Checkpoint& checkpoint, const CollectArguments& collect, const CommonOptions& common,
                 const fs::path& file, const fs::path& work_dir, std::int64_t tokens)
    : checkpoint_(checkpoint),
      collect_(collect),
      overwrite_(common.overwrite),
      file_(file),
      tokenizer_(Tokenizer::from_file(checkpoint.location().directory / "tokenizer.json")),
      book_(checkpoint.config(), tokenizer_, chat_template_of(collect, checkpoint), common.seed) {
  const CollectOptions& options = collect.options;
  if (collect.stream_layers) {
    throw UsageError(
        "--stream-layers: without --prompts, and with --own-text, the model writes calibration text token by token, "
        "which needs all of its weights in memory; pass only --prompts");
  }
  if (!book_.fault().empty()) log_info("the chat template is not used for self-generated text: " + book_.fault());
  request_.shape = text_shape(tokens, options.seq_len);
  if (options.device.is_cuda()) {
    request_.shape =
        on_device(request_.shape, checkpoint.config(), decoded_bytes(checkpoint, c10::elementSize(options.dtype)),
                  all_device_bytes(options.device));
  }
  request_.seed = common.seed;
  request_.vocabulary = std::min(checkpoint.config().vocabulary, tokenizer_.vocabulary_size());
  request_.work_dir = work_dir;
  request_.resume = options.resume;
  request_.resume_command = options.resume_command;
  request_.identity = {{"tool_version", tool_version()},
                       {"model", checkpoint.fingerprint()},
                       {"openers", book_.sha256()},
                       {"threads", at::get_num_threads()},
                       {"options",
                        {{"tokens", request_.shape.tokens()},
                         {"seq_len", request_.shape.row_tokens},
                         {"batch_rows", request_.shape.batch_rows},
                         {"seed", common.seed},
                         {"dtype", dtype_option_name(options.dtype)},
                         {"device", options.device.is_cpu() ? "cpu" : "cuda"}}}};
  const ChatTemplate chat = chat_template_of(collect, checkpoint);
  if (book_.chats() && chat.asks_for_date() && collect.rows.date.empty()) {
    log_info("the chat template writes the date, " + chat.date() + "; --date " + chat.date() +
             " gives the same text on another day");
    request_.resume_command += " --date " + chat.date();
  }
}

void OwnText::add_roles(FileRoles& roles) const {
  roles.output(file_, "-o");
  for (const char* name : {"lock", "run.json", "removing.json", "rows.json"}) {
    roles.output(request_.work_dir / name, "--work-dir");
  }
}

void OwnText::require_usable() const {
  if (!request_.resume) require_output_file(file_, overwrite_);
}

PromptSet OwnText::placeholder() const {
  PromptSet prompts;
  for (std::int64_t row = 0; row < request_.shape.rows; ++row) {
    prompts.prompts.push_back({file_.filename().string() + ":" + std::to_string(row + 1), "input_ids",
                               std::vector<std::int32_t>(static_cast<std::size_t>(request_.shape.row_tokens), 0)});
  }
  return prompts;
}

std::string OwnText::plan_text() const {
  return "text       " + std::to_string(request_.shape.tokens()) + " tokens in " + std::to_string(request_.shape.rows) +
         " rows, which the model writes itself, for " + file_.string() + "; about " +
         format_bytes(text_bytes(checkpoint_.config(), request_.shape)) + " beside the weights\n";
}

void OwnText::require_room() const {
  if (request_.resume && fs::exists(file_)) return;
  const CollectOptions& options = collect_.options;
  const std::uint64_t weights = decoded_bytes(checkpoint_, c10::elementSize(options.dtype));
  require_memory(options.device, weights + text_bytes(checkpoint_.config(), request_.shape),
                 "pass fewer --tokens (or --own-text) or a shorter --seq-len, or only text of your own with --prompts");
}

// An interrupted run may have already written the file.
bool OwnText::take_earlier() const {
  if (!request_.resume || !fs::exists(file_)) return false;
  Json wanted = request_.identity;
  Json found = written_record(file_).value_or(Json::object());
  if (found.is_object()) found.erase("threads");
  wanted.erase("threads");
  if (found == wanted) return true;
  if (overwrite_) return false;
  throw UsageError(file_.string() +
                   ": exists and is not the text that this model writes with these options; choose another output, "
                   "pass the file with --prompts, or replace it with --overwrite");
}

void OwnText::write() {
  if (take_earlier()) {
    log_info("the self-generated text is taken from " + file_.string());
  } else {
    { const AtomicFile probe(file_); }  // fails early if the text cannot be written
    const CollectOptions& options = collect_.options;
    require_room();
    checkpoint_.set_run_length(request_.shape.row_tokens);
    Decoder decoder(checkpoint_, {options.dtype, options.device, false});
    const TextRows rows = write_text(decoder, book_, request_);
    save_text(file_, rows, tokenizer_, request_.identity);
  }
  forget_text(request_);
}

PromptSet OwnText::read() const {
  const LazyTokenizer tokenizer(checkpoint_.location().directory / "tokenizer.json");
  return load_prompts({file_}, tokenizer, chat_template_of(collect_, checkpoint_), checkpoint_.config().vocabulary);
}

Json OwnText::record() const {
  return {{"seed", request_.seed},          {"temperature", 1.0},
          {"rows", request_.shape.rows},    {"row_tokens", request_.shape.row_tokens},
          {"chat_template", book_.chats()}, {"openers", book_.sha256()},
          {"sha256", sha256_file(file_)}};
}

}  // namespace oscar
