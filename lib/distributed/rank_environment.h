// What torchrun tells each process of a run in its environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT, and whether the agent of torchrun serves the store at that address
// (TORCHELASTIC_USE_AGENT_STORE) or rank 0 has to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace oscar {

struct RankEnvironment {
  int rank = 0, count = 1;              // of all machines
  int local_rank = 0, local_count = 1;  // of this one
  std::string address;                  // of the store
  std::uint16_t port = 0;
  bool agent_store = false;  // false: rank 0 serves the store
  int attempt = 0;           // how often torchrun has started all ranks anew
};

// nullopt where there is no WORLD_SIZE, or a single rank: the process runs alone. UsageError for values that are no
// numbers, a rank beyond the count, or a missing address.
std::optional<RankEnvironment> rank_environment();

}  // namespace oscar
