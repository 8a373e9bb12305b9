// The thread that signals to other ranks that this rank is alive, and detects failed or dead ranks (ranks.h).
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "distributed/rank_store.h"
#include "distributed/ranks.h"

namespace oscar {

std::string failure_text(const RankFailure& failure);              // the store's text form
std::optional<RankFailure> failure_from(const std::string& text);  // nullopt: damaged

class Ranks::Watch {
 public:
  Watch(const RankEnvironment& environment, std::string prefix);
  ~Watch();
  void stop();

  // True: this rank reported the failure to the others and should print it here.
  bool note(const RankFailure& failure, bool first);
  std::optional<RankFailure> failure() const;
  bool speaks() const;
  void set_advice(const std::string& advice);

 private:
  void run();
  void look();
  void miss_next();
  void end_if_it_hangs();

  RankEnvironment environment_;
  std::string prefix_;
  RankStore store_;
  mutable std::mutex mutex_;
  std::optional<RankFailure> failure_;
  bool speaks_ = false;
  std::string advice_;
  double noticed_ = 0, beat_ = 0, changed_ = 0;  // times; 0: not yet
  std::int64_t signs_ = 0;                       // heartbeats of the next rank
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace oscar
