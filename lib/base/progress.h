// Progress of a long loop on stderr. A terminal gets a bar with rate and remaining time, other outputs a line every few
// seconds. Shows nothing when quiet or with --no-progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/foreign_text.h"

namespace oscar {

void set_progress_enabled(bool enabled);

std::string duration_text(double seconds);  // "12.3 s", "45 min", "3.2 h"

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
  std::chrono::steady_clock::time_point start_, shown_;
};

}  // namespace oscar
