#include "pipeline/common/rank_run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>

#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"

namespace oscar {
namespace {

// Also ends the other ranks. If another rank prints the message, returns the common exit code; otherwise throws this
// rank's error.
int end_all(Ranks& ranks, ExitCode code, const std::string& message, const std::string& advice) {
  const bool speaks = ranks.fail(code, message);
  const RankFailure failure = ranks.failure().value_or(RankFailure{ranks.rank(), static_cast<int>(code), message});
  ranks.finish();
  if (!speaks) return failure.code;
  const auto first = static_cast<ExitCode>(failure.code);
  if (log_level() == LogLevel::kErrors) set_log_level(LogLevel::kQuiet);
  if (first == ExitCode::kInterrupted) throw InterruptedError(failure.message, true);
  const bool own = failure.rank == ranks.rank();
  const std::string name = own ? "rank " + std::to_string(ranks.rank()) + ": " : std::string();
  throw Error(first, name + failure.message + (first == ExitCode::kEnvironment ? advice : std::string()));
}

// Exit code for exceptions other than Error, as in run_app().
ExitCode code_of(const std::exception& e) {
  const bool machine = dynamic_cast<const std::bad_alloc*>(&e) != nullptr ||
                       dynamic_cast<const c10::OutOfMemoryError*>(&e) != nullptr ||
                       dynamic_cast<const fs::filesystem_error*>(&e) != nullptr;
  return machine ? ExitCode::kEnvironment : ExitCode::kNumerical;
}

}  // namespace

std::string as_started(const std::string& command) {
  const std::optional<RankEnvironment> environment = rank_environment();
  if (!environment) return command;
  const int machines = (environment->count + environment->local_count - 1) / environment->local_count;
  return "torchrun " + (machines > 1 ? "--nnodes " + std::to_string(machines) + " ... " : std::string()) +
         "--nproc-per-node " + std::to_string(environment->local_count) + " --no-python " + command;
}

int run_as_rank(const std::string& resume_command, const std::function<int(Ranks*)>& body) {
  const std::optional<RankEnvironment> environment = rank_environment();
  if (!environment) return body(nullptr);
  Ranks ranks(*environment);
  if (!ranks.is_first()) {
    set_progress_enabled(false);
    set_log_level(LogLevel::kErrors);  // rank 0 prints the same
  }
  const auto advice = [&] { return "; the other ranks have stopped. Go on with: " + resume_command; };
  ranks.set_advice(advice());
  try {
    const int code = body(&ranks);
    ranks.finish();
    return code;
  } catch (const InterruptedError& e) {
    return end_all(ranks, ExitCode::kInterrupted, e.what(), advice());
  } catch (const Error& e) {
    return end_all(ranks, e.code(), e.what(), advice());
  } catch (const std::exception& e) {
    if (!ranks.fail(code_of(e), e.what())) return ranks.failure()->code;
    ranks.finish();
    throw;
  }
}

void require_alike(Ranks* ranks, at::Device device) {
  if (ranks == nullptr) return;
  const std::string own = device.is_cuda() ? "a GPU" : "the CPU";
  const std::vector<std::string> all = ranks->all_gather(own);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& place) { return place != all[0]; });
  if (other != all.end()) {
    throw EnvironmentError("rank " + std::to_string(other - all.begin()) + " computes on " + *other +
                           " and rank 0 on " + all[0] + "; pass --device cpu, or start no more ranks than GPUs");
  }
}

void log_other_timelines(Timeline* timeline, Ranks* ranks) {
  if (timeline == nullptr || ranks == nullptr) return;
  Json own = Json::array();
  for (const Timeline::Row& row : timeline->rows()) own.push_back({row.name, row.seconds});
  const std::vector<std::string> all = ranks->all_gather(own.dump());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    std::vector<Timeline::Row> rows;
    for (const Json& row : parse_json(all[rank], "rank " + std::to_string(rank))) rows.push_back({row[0], row[1]});
    for (const std::string& line : timeline_lines(rows)) log_detail("rank " + std::to_string(rank) + line);
  }
}

void require_alone(const char* what) {
  if (const auto environment = rank_environment()) {
    throw UsageError(std::string(what) + " runs as one process, and WORLD_SIZE is " +
                     std::to_string(environment->count) + ": start it without torchrun");
  }
}

}  // namespace oscar
