#include "distributed/rank_watch.h"

#include <unistd.h>

#include <chrono>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/log.h"

namespace oscar {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100};
constexpr double kBeatSeconds = 1.0;
constexpr std::chrono::seconds kWatchPatience{30};  // the store has just answered

std::string name_of(int rank, int count) { return "rank " + std::to_string(rank) + " of " + std::to_string(count); }

}  // namespace

std::string failure_text(const RankFailure& failure) {
  return Json{{"rank", failure.rank}, {"code", failure.code}, {"message", failure.message}}.dump(
      -1, ' ', true, Json::error_handler_t::replace);
}

std::optional<RankFailure> failure_from(const std::string& text) {
  try {
    const Json json = parse_json(text, "the store");
    return RankFailure{static_cast<int>(json_int(json, "rank", "the store")),
                       static_cast<int>(json_int(json, "code", "the store")),
                       json_string(json, "message", "the store")};
  } catch (const Error&) {
    return std::nullopt;
  }
}

Ranks::Watch::Watch(const RankEnvironment& environment, std::string prefix)
    : environment_(environment), prefix_(std::move(prefix)), store_(environment, false, kWatchPatience) {
  thread_ = std::thread([this] { run(); });
}

Ranks::Watch::~Watch() { stop(); }

void Ranks::Watch::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

bool Ranks::Watch::note(const RankFailure& failure, bool first) {
  const std::scoped_lock lock(mutex_);
  if (failure_) {
    // The thread may have read this rank's own failure from the store before this rank could report it.
    speaks_ = speaks_ || (first && failure_text(*failure_) == failure_text(failure));
    return speaks_;
  }
  failure_ = failure;
  speaks_ = first;
  return speaks_;
}

std::optional<RankFailure> Ranks::Watch::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

bool Ranks::Watch::speaks() const {
  const std::scoped_lock lock(mutex_);
  return speaks_;
}

void Ranks::Watch::set_advice(const std::string& advice) {
  const std::scoped_lock lock(mutex_);
  advice_ = advice;
}

void Ranks::Watch::run() {
  while (!stopping_) {
    try {
      look();
    } catch (const std::exception&) {
      // The remaining ranks cannot communicate any more, so one of them prints.
      const bool agent = environment_.agent_store;
      note({0, static_cast<int>(ExitCode::kEnvironment),
            agent ? "torchrun, which serves the store of the ranks, does not answer any more"
                  : name_of(0, environment_.count) + ", which serves the store of the ranks, has died"},
           environment_.rank == (agent ? 0 : 1));
    }
    if (failure()) request_interrupt();
    end_if_it_hangs();
    std::this_thread::sleep_for(kLookEvery);
  }
}

void Ranks::Watch::look() {
  if (failure()) return;
  if (store_.has(prefix_ + "failed")) {
    const std::optional<RankFailure> found = failure_from(store_.get(prefix_ + "failed"));
    note(found.value_or(RankFailure{0, 4, "the store of the ranks holds a damaged message"}), false);
    return;
  }
  const double now = steady_seconds();
  if (now - beat_ < kBeatSeconds) return;
  beat_ = now;
  store_.add(prefix_ + "alive/" + std::to_string(environment_.rank), 1);
  miss_next();
}

// Each rank checks only the next one, so the number of requests to the store per rank stays constant.
void Ranks::Watch::miss_next() {
  const int next = (environment_.rank + 1) % environment_.count;
  const std::string name = std::to_string(next);
  const std::int64_t signs = store_.add(prefix_ + "alive/" + name, 0);
  if (signs != signs_ || signs == 0) {  // 0: not yet connected
    signs_ = signs;
    changed_ = beat_;
    return;
  }
  if (beat_ - changed_ < kMissedSeconds || store_.has(prefix_ + "done/" + name)) return;
  const RankFailure missed{next, static_cast<int>(ExitCode::kEnvironment),
                           name_of(next, environment_.count) + " has died: no sign of life for " +
                               std::to_string(static_cast<int>(kMissedSeconds)) + " seconds"};
  const std::optional<RankFailure> first = failure_from(store_.set_first(prefix_ + "failed", failure_text(missed)));
  const bool own = first && first->message == missed.message;
  note(first.value_or(missed), own);
}

void Ranks::Watch::end_if_it_hangs() {
  const double now = steady_seconds();
  if (!interrupt_requested()) return;
  if (noticed_ == 0) noticed_ = now;
  if (now - noticed_ < kGraceSeconds) return;
  const std::optional<RankFailure> found = failure();
  const std::scoped_lock lock(mutex_);
  if (!found) log_warning("interrupted while this rank was waiting for others" + advice_);
  if (found && speaks_) log_error(found->message + advice_);
  ::_exit(found ? found->code : static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace oscar
