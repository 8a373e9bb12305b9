#include "base/run_directory.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/errors.h"
#include "base/formatted.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/temporary.h"

namespace oscar {
namespace {

constexpr const char* kRun = "run.json";
constexpr const char* kRemoving = "removing.json";  // run.json while the run's files are being removed
constexpr std::uint64_t kMostRunBytes = 1 << 20;
constexpr std::uint64_t kMostStateBytes = std::uint64_t{256} << 20;  // of a JSON file
constexpr std::int64_t kMostThreads = 1 << 16;
constexpr std::size_t kMostShown = 200;  // bytes of a value in a message

std::string option_flag(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

std::string value_text(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  return text;
}

bool is_there(const fs::path& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0;
}

}  // namespace

void require_score(double score, double least, const std::string& where) {
  constexpr double kMost = 1e6;
  if (score >= least && score <= kMost) return;
  damaged_run(where, "a score is " + formatted("%g", score) + ", expected 0 to a million");
}

Json with_checksum(Json content) {
  content.erase("checksum");
  Checksum sum;
  sum.add(content.dump());
  content["checksum"] = sum.hex();
  return content;
}

void damaged_run(const std::string& where, const std::string& what) {
  throw InputError(where + ": " + what + ", so the work directory is damaged; delete it to start anew");
}

void require_checksum(const std::string& found, const std::string& saved, const std::string& where) {
  if (found != saved) damaged_run(where, "its content is not what the run wrote (the checksum differs)");
}

Json parse_run_record(std::string_view text, const std::string& where) {
  Json run = parse_json(text, where);
  const std::int64_t threads = json_int(run, "threads", where);
  if (threads < 1 || threads > kMostThreads) {
    throw InputError(where + ": 'threads' is " + std::to_string(threads) + ", expected 1 to " +
                     std::to_string(kMostThreads) + "; delete the directory to start anew");
  }
  json_object(run, "options", where);
  json_string(run, "tool_version", where);
  return run;
}

void require_same_run(const fs::path& path, const Json& found, const Json& wanted, const RunInputs& inputs) {
  const std::string where = path.string() + ": the run in it ";
  const std::string advice = "; continue with what it was started with, or delete the directory to start anew";
  const auto differs = [&](const std::string& key) { return json_member(found, key) != json_member(wanted, key); };
  for (const auto& [key, text] : inputs) {
    if (differs(key)) throw InputError(where + text + advice);
  }
  const Json found_options = json_member(found, "options");
  for (const auto& item : wanted["options"].items()) {
    const Json before = json_member(found_options, item.key());
    if (before == item.value()) continue;
    throw UsageError(where + "has " + option_flag(item.key()) + " " + value_text(before) + ", this one " +
                     value_text(item.value()) + advice);
  }
  if (differs("tool_version")) {
    throw UsageError(where + "was started by version " + value_text(json_member(found, "tool_version")) +
                     " of this program, this is " + value_text(wanted["tool_version"]) + advice);
  }
}

bool holds_run(const fs::path& path) {
  if (is_there(path / kRun) || is_there(path / kRemoving)) return true;
  // The lock goes last, so possibly only the lock is left, or not even it.
  std::error_code ec;
  fs::directory_iterator it(path, ec);
  if (ec) return false;
  return std::all_of(begin(it), end(it), [](const fs::directory_entry& e) { return e.path().filename() == "lock"; });
}

RunDirectory::RunDirectory(const fs::path& path, const Json& run, bool resume, const RunInputs& inputs,
                           std::function<bool(const std::string&)> is_run_file)
    : path_(path), is_run_file_(std::move(is_run_file)) {
  make_directory(path);
  lock_.emplace(path / "lock");
  if (is_there(path / kRun)) {
    if (!resume) throw UsageError(path.string() + ": holds an unfinished run; continue it with --resume, or delete it");
    const std::string text = read_file(path / kRun, kMostRunBytes, Links::kRefuse);
    const Json found = parse_run_record(text, (path / kRun).string());
    require_same_run(path, found, run, inputs);
    threads_ = static_cast<int>(json_int(found, "threads", (path / kRun).string()));
    run_id_ = sha256_hex(text);
    resumed_ = true;
    for (const fs::path& file : run_files()) {
      if (fs::is_symlink(file)) throw InputError(file.string() + ": is a link, which is not followed; remove it");
      remove_stale_temporaries(file);
    }
    return;
  }
  if (is_there(path / kRemoving)) {
    remove_files();  // the remains of a run whose removal was interrupted
  } else if (resume) {
    log_info(path.string() + ": holds no run to resume; starting one");
  }
  for (const fs::path& stranger : run_files()) {
    if (!is_there(stranger)) continue;
    throw UsageError(stranger.string() + ": is in the way of a run's file and belongs to no run (there is no " + kRun +
                     " beside it); choose another work directory, or move it away");
  }
  const std::string text = dump_json(run);
  threads_ = static_cast<int>(json_int(run, "threads", kRun));
  run_id_ = sha256_hex(text);
  write_file_atomic(path / kRun, text);
}

void RunDirectory::require_own(const std::string& found, const fs::path& where) const {
  if (found == run_id_) return;
  throw InputError(where.string() + ": belongs to another run; delete the directory to start anew");
}

void RunDirectory::save_json(const std::string& name, Json content) const {
  content["run"] = run_id_;
  write_file_atomic(file(name), with_checksum(std::move(content)).dump());
}

std::optional<Json> RunDirectory::load_json(const std::string& name) const {
  if (!is_there(file(name))) return std::nullopt;
  const std::string where = file(name).string();
  const Json content = parse_json(read_file(file(name), kMostStateBytes, Links::kRefuse), where);
  require_own(json_string(content, "run", where), where);
  require_checksum(with_checksum(content)["checksum"], json_string(content, "checksum", where), where);
  return content;
}

// Existing files with the names of run files, or their temporary files.
std::vector<fs::path> RunDirectory::run_files() const {
  std::error_code ec;
  std::vector<fs::path> files;
  for (fs::directory_iterator it(path_, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    const std::string stem = name.substr(0, name.find(".tmp."));
    if (is_run_file_(name)) {
      files.push_back(it->path());
    } else if (is_run_file_(stem) && is_temporary_of(name, stem)) {
      files.push_back(path_ / stem);
    }
  }
  return files;
}

void RunDirectory::remove_files() const {
  std::error_code ec;
  for (const fs::path& file : run_files()) {
    remove_stale_temporaries(file);
    fs::remove(file, ec);
  }
  fs::remove(path_ / kRemoving, ec);
}

void RunDirectory::remove() {
  std::error_code ec;
  fs::rename(path_ / kRun, path_ / kRemoving, ec);  // the remains of a partly removed directory are then not a run
  remove_files();
  fs::remove(path_ / "lock", ec);
  fs::remove(path_, ec);  // fails, as intended, if the directory contains other files
  lock_.reset();
}

}  // namespace oscar
