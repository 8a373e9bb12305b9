// The environment variables that torchrun sets for each process: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT. TORCHELASTIC_USE_AGENT_STORE says whether torchrun's agent serves the store at that
// address; otherwise rank 0 does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace oscar {

struct RankEnvironment {
  int rank = 0, count = 1;              // over all machines
  int local_rank = 0, local_count = 1;  // on this machine
  std::string address;                  // of the store
  std::uint16_t port = 0;
  bool agent_store = false;  // false: rank 0 serves the store
  int attempt = 0;           // how often torchrun has restarted all ranks
};

// nullopt for a single process: no WORLD_SIZE, or only one rank. UsageError for values that are not numbers, a rank
// beyond the count, or a missing address.
std::optional<RankEnvironment> rank_environment();

}  // namespace oscar
