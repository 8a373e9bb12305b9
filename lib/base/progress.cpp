#include "base/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdio>

#include "base/columns.h"
#include "base/formatted.h"
#include "base/log.h"

namespace oscar {
namespace {
bool g_enabled = true;

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

// The first units are unreliable, because the start may dominate their time.
constexpr double kFirstSeconds = 3.0, kFirstFraction = 0.05;
constexpr double kRecentSeconds = 60.0;

// A longer line would break, and the next one could not replace all of it.
std::size_t terminal_columns() {
  winsize size = {};
  const bool known = ::ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return std::max<std::size_t>(known ? size.ws_col : kColumns, 20);
}

std::string clock_text(double s) {
  const int total = static_cast<int>(s + 0.5);
  if (total >= 3600) return formatted("%d:%02d:%02d", total / 3600, total / 60 % 60, total % 60);
  return formatted("%d:%02d", total / 60, total % 60);
}
}  // namespace

void set_progress_enabled(bool enabled) { g_enabled = enabled; }

std::string duration_text(double seconds) {
  if (seconds < 120) return formatted("%.1f s", seconds);
  if (seconds < 7200) return formatted("%.0f min", seconds / 60);
  return formatted("%.1f h", seconds / 3600);
}

Progress::Progress(std::string label, std::uint64_t total, std::string unit)
    : label_(escape_text(label)),
      unit_(escape_text(unit)),
      total_(std::max<std::uint64_t>(total, 1)),
      start_(std::chrono::steady_clock::now()),
      shown_(start_),
      rate_(start_) {}

double RecentRate::at(Time now, std::uint64_t done) {
  const auto age = [&](std::size_t i) { return seconds(now - seen_[i].first); };
  while (seen_.size() > 1 && age(0) > kRecentSeconds && age(1) >= kFirstSeconds) seen_.pop_front();
  const auto [time, before] = seen_.front();
  if (age(seen_.size() - 1) >= 1) seen_.emplace_back(now, done);
  return now > time ? static_cast<double>(done - before) / seconds(now - time) : 0.0;
}

Progress::~Progress() {
  if (!finished_ && stderr_is_terminal() && g_enabled && log_level() >= LogLevel::kNormal) std::fputs("\n", stderr);
}

void Progress::advance(std::uint64_t units) {
  done_ = std::min(done_ + units, total_);
  const double interval = stderr_is_terminal() ? 0.1 : 10.0;
  if (seconds(std::chrono::steady_clock::now() - shown_) >= interval) show(false);
}

void Progress::finish() {
  if (finished_) return;
  show(true);
  finished_ = true;
}

void Progress::show(bool last) {
  if (!g_enabled || log_level() < LogLevel::kNormal) return;
  shown_ = std::chrono::steady_clock::now();
  const double elapsed = seconds(shown_ - start_);
  const double recent = rate_.at(shown_, done_);
  const double rate = last && elapsed > 0 ? static_cast<double>(done_) / elapsed : recent;
  const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
  const bool known = rate > 0 && (elapsed >= kFirstSeconds || fraction >= kFirstFraction);
  std::string tail = last ? "in " + clock_text(elapsed)
                          : "ETA " + (known ? clock_text(static_cast<double>(total_ - done_) / rate) : "-");
  if (!note_.empty()) tail += "  " + note_;
  if (stderr_is_terminal()) {
    constexpr int kWidth = 24;
    const int full = static_cast<int>(fraction * kWidth);
    // Label, unit and note were escaped when they were set.
    const std::string end =
        formatted(" %3.0f%%  %.*f ", 100 * fraction, rate < 10 ? 1 : 0, rate) + unit_ + "/s  " + tail;
    std::string line = label_ + " [" + std::string(full, '#') + std::string(kWidth - full, '.') + "]" + end;
    const std::size_t most = terminal_columns() - 1;
    if (display_width(line) > most) line = shortened(label_ + end, most);
    std::fprintf(stderr, "\r\033[K%s%s", line.c_str(), last ? "\n" : "");
  } else {
    std::fprintf(stderr, "%s: %llu of %llu %s (%.0f%%), %.*f %s/s, %s\n", label_.c_str(),
                 static_cast<unsigned long long>(done_), static_cast<unsigned long long>(total_), unit_.c_str(),
                 100 * fraction, rate < 10 ? 1 : 0, rate, unit_.c_str(), tail.c_str());
  }
  std::fflush(stderr);
}

}  // namespace oscar
