#include "base/run_directory.h"

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"

namespace oscar {
namespace {

constexpr const char* kRun = "run.json";

std::string option_flag(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

std::string value_text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Throws naming the first difference between the run that is in the directory and the one that was asked for.
void require_same_run(const fs::path& path, const Json& found, const Json& wanted, const RunDirectory::Inputs& inputs) {
  const std::string where = path.string() + ": the run in it ";
  const std::string advice = "; continue with what it was started with, or delete the directory to start anew";
  const auto differs = [&](const std::string& key) { return found.value(key, Json()) != wanted.value(key, Json()); };
  for (const auto& [key, text] : inputs) {
    if (differs(key)) throw InputError(where + text + advice);
  }
  const Json found_options = found.value("options", Json::object());
  for (const auto& item : wanted["options"].items()) {
    const Json before = found_options.value(item.key(), Json());
    if (before == item.value()) continue;
    throw UsageError(where + "has " + option_flag(item.key()) + " " + value_text(before) + ", this one " +
                     value_text(item.value()) + advice);
  }
  if (differs("tool_version")) {
    throw UsageError(where + "was started by version " + value_text(found.value("tool_version", Json())) +
                     " of this program, this is " + value_text(wanted["tool_version"]) + advice);
  }
}

}  // namespace

RunDirectory::RunDirectory(const fs::path& path, const Json& run, bool resume, const Inputs& inputs,
                           std::function<bool(const std::string&)> is_run_file)
    : path_(path), is_run_file_(std::move(is_run_file)) {
  make_directory(path);
  lock_.emplace(path / "lock");
  if (fs::exists(path / kRun)) {
    if (!resume) {
      throw UsageError(path.string() + ": holds an unfinished run; continue it with --resume, or delete it");
    }
    const std::string text = read_file(path / kRun, 1 << 20);
    const Json found = parse_json(text, (path / kRun).string());
    require_same_run(path, found, run, inputs);
    threads_ = static_cast<int>(std::clamp<std::int64_t>(json_int(found, "threads", (path / kRun).string()), 1, 1024));
    run_id_ = sha256_hex(text);
    resumed_ = true;
    remove_files(true);
    return;
  }
  if (resume) log_info(path.string() + ": holds no run to resume; starting one");
  remove_files(false);  // of a run whose removal was cut short
  const std::string text = dump_json(run);
  threads_ = static_cast<int>(json_int(run, "threads", kRun));
  run_id_ = sha256_hex(text);
  write_file_atomic(path / kRun, text);
}

void RunDirectory::require_own(const std::string& found, const fs::path& where) const {
  if (found == run_id_) return;
  throw InputError(where.string() + ": belongs to another run; delete the directory to start anew");
}

void RunDirectory::remove_files(bool temporaries_only) const {
  std::error_code ec;
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(path_, ec)) {
    const std::string name = entry.path().filename().string();
    const std::size_t suffix = name.find(".tmp.");  // left half-written by a killed run
    const std::string stem = name.substr(0, suffix);
    if (stem != kRun && !is_run_file_(stem)) continue;
    if (temporaries_only && suffix == std::string::npos) continue;
    doomed.push_back(entry.path());
  }
  for (const fs::path& path : doomed) fs::remove(path, ec);
}

void RunDirectory::remove() {
  std::error_code ec;
  fs::remove(path_ / kRun, ec);  // first: what is left of a half-removed directory is then no run
  remove_files(false);
  fs::remove(path_ / "lock", ec);
  fs::remove(path_, ec);  // fails, as it should, when the directory holds other files
  lock_.reset();
}

}  // namespace oscar
