// The directory that stores the state of a long run, so that it can resume after a stop or kill. run.json describes the
// run and is written first. Every other file is written atomically and contains run_id() and a checksum of its content.
// A run holds a lock on its directory, and follows no link in it. A checksum shows damage: who writes the directory
// decides the result.
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

// The members of run.json that describe the user's input files: the key, and the message text when it differs ("is of
// another model").
using RunInputs = std::vector<std::pair<std::string, std::string>>;

// The content of a run.json. InputError unless it has the form {tool_version: text, threads: 1 to 65536, options:
// {...}}.
Json parse_run_record(std::string_view text, const std::string& where);

// Compares the run in `path` with the requested one and names the first difference. InputError for inputs, UsageError
// for options and versions.
void require_same_run(const fs::path& path, const Json& found, const Json& wanted, const RunInputs& inputs);

// Whether the directory holds a run, or remains of a run whose removal was interrupted. A command that finds its output
// complete removes these: it opens the directory with `resume` and calls remove().
bool holds_run(const fs::path& path);

// InputError: "WHERE: WHAT, so the work directory is damaged; delete it to start anew".
[[noreturn]] void damaged_run(const std::string& where, const std::string& what);
// A score (KL or log-likelihood) in nats that may be in a file of a run: damaged_run() for NaN, and unless it is from
// `least` to a million, which logits of no working model reach. Rounding may put one a little below 0.
constexpr double kScoreRounding = 1e-3;
void require_score(double score, double least, const std::string& where);

// An object with the checksum of its other members.
Json with_checksum(Json content);
// damaged_run() unless a file's checksum is the one that it was saved with.
void require_checksum(const std::string& found, const std::string& saved, const std::string& where);

class RunDirectory {
 public:
  // Creates or opens the directory and locks it. `run`: {tool_version, threads, the inputs, options{...}}.
  // "threads" is recorded but not compared. The rounding of a GEMM depends on it, so the first value is kept.
  // If the directory holds a run: UsageError unless `resume`, and the difference is named when it is another run
  // (require_same_run). If it holds none, `resume` starts a new run.
  // is_run_file: which names, besides lock and run.json, belong to runs. UsageError when such files exist without a
  // run, because they belong to someone else.
  RunDirectory(const fs::path& path, const Json& run, bool resume, const RunInputs& inputs,
               std::function<bool(const std::string&)> is_run_file);

  const fs::path& path() const { return path_; }
  fs::path file(const std::string& name) const { return path_ / name; }
  int threads() const { return threads_; }               // of the process that started the run
  const std::string& run_id() const { return run_id_; }  // SHA-256 of run.json
  bool resumed() const { return resumed_; }              // the directory already held a run

  // InputError that names the file if `found` is not run_id().
  void require_own(const std::string& found, const fs::path& where) const;

  // Writes an object as a file of the run, with run_id() and its checksum.
  void save_json(const std::string& name, Json content) const;
  // Reads it. nullopt if there is none. InputError for a link, the file of another run or other content.
  std::optional<Json> load_json(const std::string& name) const;

  void remove();  // removes the run's files, and the directory if nothing else is in it

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
