#include "tune/trial_log.h"

#include "base/errors.h"
#include "base/log.h"

namespace oscar {

Json score_json(const Score& score) {
  return {{"text_kl", score.text_kl}, {"retrieval_kl", score.retrieval_kl}, {"solved", score.solved}};
}

TrialLog::TrialLog(const fs::path& path, const Json& identity) : path_(path), identity_(identity) {
  std::error_code ec;
  if (path.empty() || !fs::exists(path, ec)) return;
  const Json found = read_json(path);
  const std::string where = path.string();
  if (json_int(found, "format_version", where) != 2 || json_object(found, "identity", where) != identity) {
    log_info(where + ": holds trials of other inputs or options; starting anew");
    return;
  }
  for (const Json& trial : json_array(found, "trials", where)) {
    const Json& score = json_object(trial, "score", where);
    for (const char* key : {"text_kl", "retrieval_kl", "solved"}) json_number(score, key, where);
    json_object(trial, "trial", where);
    const Json& parts = json_object(trial, "parts", where);
    for (const char* key : {"text", "retrieval"}) {
      for (const Json& value : json_array(parts, key, where)) {
        if (!value.is_number()) throw InputError(where + ": a trial has parts that are no numbers; delete the file");
      }
    }
    trials_.push_back(trial);
  }
  if (!trials_.empty()) log_info(where + ": " + std::to_string(trials_.size()) + " trials are taken from it");
}

std::optional<Score> TrialLog::find(const Json& trial) const {
  for (const Json& entry : trials_) {
    if (entry["trial"] != trial) continue;
    const Json& s = entry["score"];
    return Score{.text_kl = s["text_kl"].get<double>(),
                 .retrieval_kl = s["retrieval_kl"].get<double>(),
                 .solved = s["solved"].get<double>(),
                 .text_parts = entry["parts"]["text"].get<std::vector<double>>(),
                 .retrieval_parts = entry["parts"]["retrieval"].get<std::vector<double>>()};
  }
  return std::nullopt;
}

void TrialLog::add(const Json& trial, const std::string& name, const Score& score) {
  trials_.push_back({{"name", name},
                     {"trial", trial},
                     {"score", score_json(score)},
                     {"parts", {{"text", score.text_parts}, {"retrieval", score.retrieval_parts}}}});
  if (path_.empty()) return;
  write_file_atomic(path_, dump_json(Json{{"format_version", 2}, {"identity", identity_}, {"trials", trials_}}));
}

}  // namespace oscar
