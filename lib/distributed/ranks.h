// One process among those that torchrun started for one command, a *rank*: meeting the others, exchanging byte strings
// with them through their store, and ending all of them when one fails.
//
// While a Ranks lives, a thread shows the others a sign of life every second, and watches for failures. A rank that
// fails says so in the store; one that dies is missed by the rank before it within kMissedSeconds. In both cases the
// thread sets the flag of base/interrupt, so that every loop that can be interrupted saves its state and ends as it
// does after SIGTERM. A process that hangs (in a collective call, whose partner is gone) is ended kGraceSeconds later.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "distributed/rank_environment.h"

namespace oscar {

inline constexpr double kMissedSeconds = 10.0;  // without a sign of life
inline constexpr double kGraceSeconds = 15.0;   // to save state after a failure

// The failure that all ranks end by: the first one.
struct RankFailure {
  int rank = 0;
  int code = 4;         // exit code of all ranks
  std::string message;  // of the rank
};

class Ranks {
 public:
  // Meets the others: waits until the store answers, for five minutes at most (EnvironmentError).
  explicit Ranks(const RankEnvironment& environment);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return environment_.rank; }
  int count() const { return environment_.count; }
  bool is_first() const { return environment_.rank == 0; }
  const RankEnvironment& environment() const { return environment_; }

  // Each is called by all ranks, in the same order. InterruptedError when a signal came, or another rank failed.
  std::vector<std::string> all_gather(std::string_view bytes);  // one string of each rank, the same everywhere
  std::string broadcast(std::string_view bytes);                // that of rank 0; what others pass is not used
  void barrier();

  // A file of any size to rank 0, which calls receive_file() for each of the others in their order. EnvironmentError
  // for a disk that is full.
  void send_file(const fs::path& path);
  void receive_file(int from, const fs::path& path);

  // Ends all ranks. True: this rank is the first that failed, so it tells people.
  bool fail(ExitCode code, const std::string& message);
  std::optional<RankFailure> failure() const;
  // Appended to the message when this process must be ended while it hangs: how to go on.
  void set_advice(const std::string& advice);

  // The rank is done; rank 0 waits until all are, where it serves the store.
  void finish();

 private:
  class Watch;
  std::string next_key();
  std::string wait_for(const std::string& key);

  RankEnvironment environment_;
  struct Stores;
  std::unique_ptr<Stores> stores_;
  std::unique_ptr<Watch> watch_;
  std::size_t calls_ = 0, files_ = 0;
};

// Does this process speak and write for all? ranks: null for a process on its own.
inline bool is_first_rank(const Ranks* ranks) { return ranks == nullptr || ranks->is_first(); }

}  // namespace oscar
