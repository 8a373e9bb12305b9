#include "distributed/ranks.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/interrupt.h"
#include "distributed/rank_store.h"
#include "distributed/rank_watch.h"

namespace oscar {
namespace {

constexpr std::chrono::seconds kMeetPatience{300};
constexpr std::chrono::milliseconds kShortestPause{1}, kLongestPause{20};
constexpr std::size_t kChunksAhead = 16;  // chunks that a sender may be ahead of the receiver
constexpr double kServeSeconds = 5.0;     // for other ranks to read a failure
constexpr double kFinishSeconds = 60.0;   // for other ranks to finish

template <typename Ready>
bool poll_until(double seconds, const Ready& ready) {
  const double end = steady_seconds() + seconds;
  while (!ready()) {
    if (steady_seconds() > end) return false;
    std::this_thread::sleep_for(kLongestPause);
  }
  return true;
}

}  // namespace

struct Ranks::Stores {
  std::string prefix;
  RankStore store;
  std::vector<std::size_t> received;  // files received from each rank

  Stores(const RankEnvironment& environment, std::string keys)
      : prefix(std::move(keys)),
        store(environment, environment.rank == 0 && !environment.agent_store, kMeetPatience),
        received(static_cast<std::size_t>(environment.count), 0) {}
};

Ranks::Ranks(const RankEnvironment& environment) : environment_(environment) {
  const std::string prefix = "oscar/" + std::to_string(environment.attempt) + "/";
  stores_ = std::make_unique<Stores>(environment, prefix);
  watch_ = std::make_unique<Watch>(environment, prefix);
}

Ranks::~Ranks() = default;

std::string Ranks::next_key() { return stores_->prefix + "call/" + std::to_string(calls_++) + "/"; }

std::string Ranks::wait_for(const std::string& key) {
  std::chrono::milliseconds pause = kShortestPause;
  while (!stores_->store.has(key)) {
    if (interrupt_requested()) throw InterruptedError("interrupted while waiting for the other ranks");
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return stores_->store.get(key);
}

std::vector<std::string> Ranks::all_gather(std::string_view bytes) {
  if (bytes.size() > kMostStoreBytes) throw std::length_error("all_gather of " + std::to_string(bytes.size()));
  const std::string key = next_key();
  stores_->store.set(key + std::to_string(rank()), bytes);
  std::vector<std::string> all;
  for (int r = 0; r < count(); ++r) all.push_back(wait_for(key + std::to_string(r)));
  return all;
}

std::string Ranks::broadcast(std::string_view bytes) {
  if (bytes.size() > kMostStoreBytes) throw std::length_error("broadcast of " + std::to_string(bytes.size()));
  const std::string key = next_key();
  if (is_first()) stores_->store.set(key, bytes);
  return wait_for(key);
}

void Ranks::barrier() { all_gather({}); }

void Ranks::send_file(const fs::path& path) {
  RankStore& store = stores_->store;
  const std::string key = stores_->prefix + "file/" + std::to_string(rank()) + "/" + std::to_string(files_++) + "/";
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  store.set(key + "size", std::to_string(bytes.size()));
  for (std::size_t chunk = 0; chunk * kMostStoreBytes < bytes.size(); ++chunk) {
    while (chunk >= kChunksAhead && store.has(key + std::to_string(chunk - kChunksAhead))) {
      if (interrupt_requested()) throw InterruptedError("interrupted while sending to rank 0");
      std::this_thread::sleep_for(kShortestPause);
    }
    store.set(key + std::to_string(chunk), bytes.substr(chunk * kMostStoreBytes, kMostStoreBytes));
  }
}

void Ranks::receive_file(int from, const fs::path& path) {
  RankStore& store = stores_->store;
  const std::size_t number = stores_->received.at(static_cast<std::size_t>(from))++;
  const std::string key = stores_->prefix + "file/" + std::to_string(from) + "/" + std::to_string(number) + "/";
  const std::size_t size = std::stoull(wait_for(key + "size"));
  AtomicFile file(path);
  std::size_t got = 0;
  for (std::size_t chunk = 0; got < size; ++chunk) {
    const std::string bytes = wait_for(key + std::to_string(chunk));
    store.erase(key + std::to_string(chunk));
    file.write(bytes);
    got += bytes.size();
  }
  file.commit();
}

bool Ranks::fail(ExitCode code, const std::string& message) {
  const RankFailure own{rank(), static_cast<int>(code), message};
  if (failure()) return watch_->speaks();
  try {
    const auto first = failure_from(stores_->store.set_first(stores_->prefix + "failed", failure_text(own)));
    // Another rank may have reported that this rank died; then it prints the message.
    return watch_->note(first.value_or(own), !first || failure_text(*first) == failure_text(own));
  } catch (const EnvironmentError&) {  // the store is gone: the watch has noticed or will notice
    return watch_->note(own, true);
  }
}

std::optional<RankFailure> Ranks::failure() const { return watch_->failure(); }

void Ranks::set_advice(const std::string& advice) { watch_->set_advice(advice); }

void Ranks::finish() {
  RankStore& store = stores_->store;
  const std::optional<RankFailure> failed = failure();
  if (!failed)
    watch_->stop();  // from here on, actions of other ranks or the end of the store are not a failure of
                     // this rank
  const auto done = [&](int r) { return store.has(stores_->prefix + "done/" + std::to_string(r)); };
  try {
    store.set(stores_->prefix + "done/" + std::to_string(rank()), "");
    if (!is_first() || environment_.agent_store) return;
    poll_until(failed ? kServeSeconds : kFinishSeconds, [&] {
      for (int r = 1; r < count(); ++r) {
        if (!done(r) && !(failed && failed->rank == r)) return false;
      }
      return true;
    });
  } catch (const EnvironmentError&) {  // no rank is left to contact
  }
}

}  // namespace oscar
