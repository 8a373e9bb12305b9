// Progress of a long loop on stderr. A terminal gets a bar with rate and remaining time, other outputs a line every few
// seconds. Shows nothing when quiet or with --no-progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "base/foreign_text.h"

namespace oscar {

void set_progress_enabled(bool enabled);

std::string duration_text(double seconds);  // "12.3 s", "45 min", "3.2 h"

// Units per second in about the last minute, so that a run that was stopped or slowed down for a while soon tells its
// present speed.
class RecentRate {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit RecentRate(Time start) : seen_{{start, 0}} {}
  double at(Time now, std::uint64_t done);

 private:
  std::deque<std::pair<Time, std::uint64_t>> seen_;
};

class Progress {
 public:
  // `unit` is plural ("tokens"); `total` counts units.
  Progress(std::string label, std::uint64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(std::uint64_t units);
  void set_note(const std::string& note) { note_ = escape_text(note); }  // shown after the rate
  void finish();

 private:
  void show(bool last);
  std::string label_, unit_, note_;
  std::uint64_t total_, done_ = 0;
  bool finished_ = false;
  RecentRate::Time start_, shown_;
  RecentRate rate_;
};

}  // namespace oscar
