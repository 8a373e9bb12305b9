// Where the wall time of a run went: every moment belongs to exactly one phase, or to "other" where none is open.
//
//   Timeline timeline({"reading", "computing"});
//   {
//     const Timeline::Phase computing(&timeline, "computing");
//     const Timeline::Phase reading(&timeline, "reading");  // computing does not count until this one ends
//   }
//
// The rows add up to the wall time because each switch hands the time since the last one to what was open until then.
// For one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oscar {

double steady_seconds();  // of a clock that never goes back

class Timeline {
 public:
  using Clock = std::function<double()>;  // seconds
  struct Row {
    std::string name;
    double seconds = 0;
  };

  // names: of the phases, in the order of the rows; a phase of another name gets a row when it is first opened. The
  // wall time starts now.
  explicit Timeline(const std::vector<std::string>& names = {}, Clock clock = steady_seconds);

  // Adds time from before the timeline was there, to this phase and to the wall time.
  void add_earlier(std::string_view name, double seconds);
  // Called before each switch of phases: waits for work that a phase started and that would be counted in the next.
  void set_settle(std::function<void()> settle) { settle_ = std::move(settle); }

  // All phases, "other" last; the seconds add up to wall(). Phases that are open count until now.
  std::vector<Row> rows();
  double wall();

  // Open from here to the end of the scope. A null timeline: nothing is measured.
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
  void account();  // the time since the last call, to the innermost phase
  std::size_t row_of(std::string_view name);

  Clock clock_;
  std::function<void()> settle_;
  std::vector<Row> rows_;          // [0] is "other"
  std::vector<std::size_t> open_;  // rows of open phases, the innermost last
  double last_;
};

// Lines of a table: seconds and share of the wall time of each row that has any, the wall time last.
std::vector<std::string> timeline_lines(const std::vector<Timeline::Row>& rows);
// The table in the log, where details are shown; nothing for a null timeline.
void log_timeline(Timeline* timeline);

}  // namespace oscar
