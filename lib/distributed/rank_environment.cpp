#include "distributed/rank_environment.h"

#include <charconv>
#include <cstdlib>

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

constexpr int kMostRanks = 65536;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

// A number from least to most; `absent` if the variable is not set.
int number_of(const char* name, int least, int most, std::optional<int> absent = std::nullopt) {
  const std::string text = variable(name);
  if (text.empty() && absent) return *absent;
  int value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec == std::errc() && end.ptr == text.data() + text.size() && value >= least && value <= most) return value;
  throw UsageError(std::string("the environment variable ") + name + " is " + quote_name(text) +
                   ", expected a number from " + std::to_string(least) + " to " + std::to_string(most) +
                   ": start the ranks with torchrun, or unset WORLD_SIZE to run alone");
}

}  // namespace

std::optional<RankEnvironment> rank_environment() {
  if (variable("WORLD_SIZE").empty()) return std::nullopt;
  RankEnvironment found;
  found.count = number_of("WORLD_SIZE", 1, kMostRanks);
  if (found.count == 1) return std::nullopt;
  found.rank = number_of("RANK", 0, found.count - 1);
  found.local_rank = number_of("LOCAL_RANK", 0, kMostRanks, found.rank);
  found.local_count = number_of("LOCAL_WORLD_SIZE", 1, found.count, found.count);
  found.address = variable("MASTER_ADDR");
  if (found.address.empty()) {
    throw UsageError("WORLD_SIZE is " + std::to_string(found.count) +
                     " and the environment variable MASTER_ADDR is not set: start the ranks with torchrun, or unset "
                     "WORLD_SIZE to run alone");
  }
  found.port = static_cast<std::uint16_t>(number_of("MASTER_PORT", 1, 65535));
  found.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.attempt = number_of("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30, 0);
  return found;
}

}  // namespace oscar
