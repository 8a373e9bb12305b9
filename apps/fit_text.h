// oscar-fit --model without --prompts, or with --own-text: the model writes calibration text itself, kept as a file
// beside the bundle.
#pragma once

#include "apps/collect_run.h"
#include "generate/write_text.h"

namespace oscar {

class OwnText {
 public:
  // tokens: about so many. `collect` has the longest sequence, device and type, and what --date and --resume say.
  // UsageError for options that contradict it, EnvironmentError where the device cannot. Opens nothing for writing.
  OwnText(Checkpoint& checkpoint, const CollectArguments& collect, const CommonOptions& common, const fs::path& file,
          const fs::path& work_dir, std::int64_t tokens);

  void add_roles(FileRoles& roles) const;
  // UsageError where the file is there and neither --overwrite nor --resume was given.
  void require_usable() const;
  // EnvironmentError where weights and cache need more memory than is free, and the text is not there yet.
  void require_room() const;
  // For --dry-run: rows of the lengths that would be written.
  PromptSet placeholder() const;
  std::string plan_text() const;
  // The file, written now, or taken from an earlier run of the same options with --resume.
  void write();
  PromptSet read() const;  // what was written
  // How it was made, with the file's hash: for the statistics.
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
