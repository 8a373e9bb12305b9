#include "distributed/rank_store.h"

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/errors.h"
#include "base/interrupt.h"

namespace oscar {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::chrono::milliseconds kAnswerTime{20000};  // maximum answer time of a live server
constexpr std::chrono::seconds kConnectTime{5};          // per attempt; signals are checked between attempts

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

struct RankStore::Impl {
  std::string where;
  c10::intrusive_ptr<c10d::TCPStore> store;

  template <typename Call>
  auto ask(const Call& call) {
    try {
      return call(*store);
    } catch (const std::exception&) {
      throw EnvironmentError("the store of the ranks at " + where + " does not answer any more");
    }
  }
};

RankStore::RankStore(const RankEnvironment& environment, bool serves, std::chrono::seconds patience)
    : impl_(std::make_unique<Impl>()) {
  impl_->where = environment.address + ":" + std::to_string(environment.port);
  c10d::TCPStoreOptions options{.port = environment.port, .isServer = serves, .waitWorkers = false};
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    options.timeout = std::min<std::chrono::milliseconds>(kConnectTime, patience);
    try {
      impl_->store = c10::make_intrusive<c10d::TCPStore>(environment.address, options);
      break;
    } catch (const std::exception& e) {
      if (interrupt_requested()) throw InterruptedError("interrupted while the ranks were meeting");
      if (!serves && std::chrono::steady_clock::now() < end) continue;
      const std::string text = e.what();
      throw EnvironmentError("the store of the ranks at " + impl_->where + " cannot be " +
                             (serves ? "served" : "reached") + " (" + text.substr(0, text.find('\n')) +
                             "); check MASTER_ADDR and MASTER_PORT, and whether rank 0 runs");
    }
  }
  impl_->store->setTimeout(kAnswerTime);
}

RankStore::~RankStore() = default;

void RankStore::set(const std::string& key, std::string_view value) {
  impl_->ask([&](c10d::TCPStore& s) { s.set(key, bytes_of(value)); });
}

bool RankStore::has(const std::string& key) {
  return impl_->ask([&](c10d::TCPStore& s) { return s.check({key}); });
}

std::string RankStore::get(const std::string& key) {
  return impl_->ask([&](c10d::TCPStore& s) { return text_of(s.get(key)); });
}

void RankStore::erase(const std::string& key) {
  impl_->ask([&](c10d::TCPStore& s) { s.deleteKey(key); });
}

std::int64_t RankStore::add(const std::string& key, std::int64_t value) {
  return impl_->ask([&](c10d::TCPStore& s) { return s.add(key, value); });
}

std::string RankStore::set_first(const std::string& key, std::string_view value) {
  return impl_->ask([&](c10d::TCPStore& s) { return text_of(s.compareSet(key, {}, bytes_of(value))); });
}

}  // namespace oscar
