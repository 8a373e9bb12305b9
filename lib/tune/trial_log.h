// Every trial of a tuning run in a file beside the bundle: a record for people, and what an interrupted run goes on
// from. One JSON document, replaced as a whole after each trial.
#pragma once

#include <optional>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "tune/evaluator.h"

namespace oscar {

class TrialLog {
 public:
  // identity: what must be equal for old trials to count (model, statistics, text, seed, budget). Trials of another
  // identity in the file are dropped. path empty: nothing is kept.
  TrialLog(const fs::path& path, const Json& identity);
  // The score of a trial that was run before.
  std::optional<Score> find(const Json& trial) const;
  void add(const Json& trial, const std::string& name, const Score& score);
  const Json& trials() const { return trials_; }

 private:
  fs::path path_;
  Json identity_, trials_ = Json::array();
};

Json score_json(const Score& score);

}  // namespace oscar
