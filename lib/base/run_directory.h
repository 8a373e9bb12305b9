// The directory in which a long run keeps its state, so that it can go on after it was stopped or killed. What the run
// is stands in run.json, written first; every other file is written atomically and names the run by run_id(). A lock
// is held while a run uses the directory.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace oscar {

// Which members of run.json are files of the user: the key, and what to say when it differs ("is of another model").
using RunInputs = std::vector<std::pair<std::string, std::string>>;

// The content of a run.json. InputError for another form than {tool_version: text, threads: 1 to 65536, options:
// {...}}.
Json parse_run_record(std::string_view text, const std::string& where);

// Throws naming the first difference between the run in `path` and the one that was asked for: InputError for inputs,
// UsageError for options and versions.
void require_same_run(const fs::path& path, const Json& found, const Json& wanted, const RunInputs& inputs);

// Whether a run, or the rest of one whose removal was cut short, is in the directory: what a command that finds its
// output complete removes, by opening it with `resume` and remove().
bool holds_run(const fs::path& path);

class RunDirectory {
 public:
  // Creates or opens and locks the directory. `run`: {tool_version, threads, the inputs, options{...}}. "threads" is
  // recorded but not compared: the rounding of a GEMM depends on it, so the first value is kept. With a run in it:
  // UsageError unless `resume`, and the difference named when it is another run (require_same_run). Without one,
  // `resume` just starts. is_run_file: which names, besides lock and run.json, belong to runs; files of such names that
  // are there without a run are other people's (UsageError).
  RunDirectory(const fs::path& path, const Json& run, bool resume, const RunInputs& inputs,
               std::function<bool(const std::string&)> is_run_file);

  const fs::path& path() const { return path_; }
  fs::path file(const std::string& name) const { return path_ / name; }
  int threads() const { return threads_; }               // of the process that started the run
  const std::string& run_id() const { return run_id_; }  // sha256 of run.json
  bool resumed() const { return resumed_; }              // there was a run in it

  // InputError naming the file when `found` is not run_id().
  void require_own(const std::string& found, const fs::path& where) const;

  void remove();  // the run's files, and the directory when nothing else is in it

 private:
  std::vector<fs::path> run_files() const;
  void remove_files() const;

  fs::path path_;
  std::function<bool(const std::string&)> is_run_file_;
  std::optional<FileLock> lock_;
  int threads_ = 1;
  std::string run_id_;
  bool resumed_ = false;
};

}  // namespace oscar
