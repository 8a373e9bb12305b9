// Where the wall time of a run went. Every moment belongs to exactly one phase, or to "other" when no phase is open.
//
//   Timeline timeline({"reading", "computing"});
//   {
//     const Timeline::Phase computing(&timeline, "computing");
//     const Timeline::Phase reading(&timeline, "reading");  // computing does not count until this one ends
//   }
//
// Each switch assigns the time since the last switch to the phase that was open. The rows therefore add up to the wall
// time.
// For one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace oscar {

class Timeline {
 public:
  using Clock = std::function<double()>;  // seconds
  struct Row {
    std::string name;
    double seconds = 0;
  };

  // names: phases in the order of the rows. A phase with another name gets a row when it is first opened. The wall time
  // starts now.
  explicit Timeline(const std::vector<std::string>& names = {}, Clock clock = steady_seconds);

  // Sets a function that runs before each switch of phases. It waits for work that the phase started and that would
  // otherwise count in the next phase.
  void set_settle(std::function<void()> settle) { settle_ = std::move(settle); }

  // All phases, "other" last; the seconds add up to wall(). Open phases count up to now.
  std::vector<Row> rows();
  double wall();

  // Opens the phase until the end of the scope. Measures nothing for a null timeline.
  class Phase {
   public:
    Phase(Timeline* timeline, std::string_view name) : timeline_(timeline) {
      if (timeline_ != nullptr) timeline_->open(name);
    }
    ~Phase() {
      if (timeline_ != nullptr) timeline_->close();
    }
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    Timeline* timeline_;
  };

 private:
  void open(std::string_view name);
  void close();
  void account();  // assigns the time since the last call to the innermost phase
  std::size_t row_of(std::string_view name);

  Clock clock_;
  std::function<void()> settle_;
  std::vector<Row> rows_;          // [0] is "other"
  std::vector<std::size_t> open_;  // rows of open phases, the innermost last
  double last_;
};

// Table lines: seconds and share of wall time for each row with any time; the wall time comes last.
std::vector<std::string> timeline_lines(const std::vector<Timeline::Row>& rows);
// Logs the table as details. Does nothing for a null timeline.
void log_timeline(Timeline* timeline);

}  // namespace oscar
