// A rank is one of the processes that torchrun started for a command. This class connects to the other ranks, exchanges
// byte strings with them through their store, and ends all ranks when one fails.
//
// While a Ranks lives, a thread sends a heartbeat every second and watches for failures. A failing rank reports its
// failure in the store. When a rank dies, its predecessor notices within kMissedSeconds. In both cases the thread sets
// the flag of base/interrupt, so interruptible loops save their state and end as after SIGTERM. A process that hangs in
// a collective call, whose partner is gone, is ended kGraceSeconds later.
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

inline constexpr double kMissedSeconds = 10.0;  // without a heartbeat
inline constexpr double kGraceSeconds = 15.0;   // to save state after a failure

// The first failure, which ends all ranks.
struct RankFailure {
  int rank = 0;
  int code = 4;         // exit code of all ranks
  std::string message;  // from the failing rank
};

class Ranks {
 public:
  // Connects to the store. Waits at most five minutes for an answer, then EnvironmentError.
  explicit Ranks(const RankEnvironment& environment);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return environment_.rank; }
  int count() const { return environment_.count; }
  bool is_first() const { return environment_.rank == 0; }
  const RankEnvironment& environment() const { return environment_; }

  // All ranks call these in the same order. InterruptedError after a signal or when another rank failed.
  std::vector<std::string> all_gather(std::string_view bytes);  // one string per rank, the same result everywhere
  std::string broadcast(std::string_view bytes);                // returns rank 0's bytes; arguments of other ranks are
                                                                // ignored
  void barrier();

  // Sends a file of any size to rank 0. Rank 0 calls receive_file() for each other rank in order. EnvironmentError when
  // the disk is full.
  void send_file(const fs::path& path);
  void receive_file(int from, const fs::path& path);

  // Ends all ranks. True: this rank failed first, so it prints the message.
  bool fail(ExitCode code, const std::string& message);
  std::optional<RankFailure> failure() const;
  // Sets advice on how to continue. It is appended to the message when a hanging process must be ended.
  void set_advice(const std::string& advice);

  // Marks this rank as done. If rank 0 serves the store, it waits until all ranks are done.
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

// Whether this process prints and writes for all ranks. ranks: null for a single process.
inline bool is_first_rank(const Ranks* ranks) { return ranks == nullptr || ranks->is_first(); }

}  // namespace oscar
