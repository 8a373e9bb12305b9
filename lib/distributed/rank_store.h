// A client of the store that all ranks share, c10d's TCPStore: keys and byte strings. Calls are short: whoever waits
// for a key asks again and again, so that it can stop. For one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "distributed/rank_environment.h"

namespace oscar {

// Bytes of one value: the store refuses values of 8 MiB and more.
inline constexpr std::size_t kMostStoreBytes = std::size_t{4} << 20;

class RankStore {
 public:
  // serves: this process is the server, too. EnvironmentError when the server does not answer within `patience`;
  // InterruptedError when a signal comes first.
  RankStore(const RankEnvironment& environment, bool serves, std::chrono::seconds patience);
  ~RankStore();

  // All throw EnvironmentError when the server is gone.
  void set(const std::string& key, std::string_view value);
  bool has(const std::string& key);
  std::string get(const std::string& key);  // of a key that is there
  void erase(const std::string& key);
  std::int64_t add(const std::string& key, std::int64_t value);  // the sum, from 0 on
  // Sets a key that is not there, and returns what then stands in it.
  std::string set_first(const std::string& key, std::string_view value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
