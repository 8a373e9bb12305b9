// A client of c10d's TCPStore, which all ranks share: keys and byte strings. Calls are short. A caller that waits for a
// key polls for it, so that it can be interrupted. For one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "distributed/rank_environment.h"

namespace oscar {

// Limit of one value: the store refuses values of 8 MiB and more.
inline constexpr std::size_t kMostStoreBytes = std::size_t{4} << 20;

class RankStore {
 public:
  // serves: this process is also the server. EnvironmentError when the server does not answer within `patience`;
  // InterruptedError when a signal comes first.
  RankStore(const RankEnvironment& environment, bool serves, std::chrono::seconds patience);
  ~RankStore();

  // All of these throw EnvironmentError when the server is gone.
  void set(const std::string& key, std::string_view value);
  bool has(const std::string& key);
  std::string get(const std::string& key);  // the key must exist
  void erase(const std::string& key);
  std::int64_t add(const std::string& key, std::int64_t value);  // returns the sum; a new key starts at 0
  // Sets the key if it does not exist. Returns its value after the call.
  std::string set_first(const std::string& key, std::string_view value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
