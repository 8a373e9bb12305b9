// oscar-fit --model without --prompts, or with --own-text: generates calibration text with the model and keeps it in a
// file beside the bundle.
#pragma once

#include "generate/write_text.h"
#include "pipeline/collect/collect_run.h"

namespace oscar {

class OwnText {
 public:
  // tokens: the approximate number. `collect` gives the longest sequence, device, dtype, --date and --resume.
  // UsageError for contradictory options, EnvironmentError if the device cannot do it. Opens nothing for writing.
  OwnText(Checkpoint& checkpoint, const CollectArguments& collect, const CommonOptions& common, const fs::path& file,
          const fs::path& work_dir, std::int64_t tokens);

  void add_roles(FileRoles& roles) const;
  // UsageError if the file exists and neither --overwrite nor --resume was given.
  void require_usable() const;
  // EnvironmentError if the text does not exist yet and weights and cache need more memory than is free.
  void require_room() const;
  // For --dry-run: rows with the planned lengths.
  PromptSet placeholder() const;
  std::string plan_text() const;
  // Generates the file, or with --resume takes it from an earlier run with the same options.
  void write();
  PromptSet read() const;  // reads the written file
  // How the text was made, with the file's hash, for the statistics.
  Json record() const;
  const fs::path& file() const { return file_; }
  std::int64_t tokens() const { return request_.shape.tokens(); }
  const std::string& resume_command() const { return request_.resume_command; }

 private:
  bool take_earlier() const;

  Checkpoint& checkpoint_;
  const CollectArguments& collect_;
  bool overwrite_;
  fs::path file_;
  Tokenizer tokenizer_;
  ScriptBook book_;
  TextRequest request_;
};

}  // namespace oscar
