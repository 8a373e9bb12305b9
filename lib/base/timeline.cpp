#include "base/timeline.h"

#include <algorithm>

#include "base/formatted.h"
#include "base/log.h"

namespace oscar {
namespace {

double total(const std::vector<Timeline::Row>& rows) {
  double seconds = 0;
  for (const Timeline::Row& row : rows) seconds += row.seconds;
  return seconds;
}

}  // namespace

Timeline::Timeline(const std::vector<std::string>& names, Clock clock)
    : clock_(std::move(clock)), rows_{{"other", 0}}, last_(clock_()) {
  for (const std::string& name : names) rows_.push_back({name, 0});
}

std::size_t Timeline::row_of(std::string_view name) {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.name == name; });
  const auto index = static_cast<std::size_t>(found - rows_.begin());
  if (found == rows_.end()) rows_.push_back({std::string(name), 0});
  return index;
}

void Timeline::account() {
  const double now = clock_();
  rows_[open_.empty() ? 0 : open_.back()].seconds += now - last_;
  last_ = now;
}

void Timeline::open(std::string_view name) {
  if (settle_) settle_();
  account();
  open_.push_back(row_of(name));
}

void Timeline::close() {
  if (settle_) settle_();
  account();
  open_.pop_back();
}

std::vector<Timeline::Row> Timeline::rows() {
  account();
  std::vector<Row> out(rows_.begin() + 1, rows_.end());
  out.push_back(rows_[0]);
  return out;
}

double Timeline::wall() { return total(rows()); }

std::vector<std::string> timeline_lines(const std::vector<Timeline::Row>& rows) {
  const double wall = total(rows);
  std::size_t width = 18;
  for (const Timeline::Row& row : rows) {
    if (row.seconds > 0) width = std::max(width, row.name.size());
  }
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, double seconds) {
    lines.push_back("  " + name + std::string(width - name.size() + 1, ' ') +
                    formatted("%9.3f s %6.1f%%", seconds, wall > 0 ? 100 * seconds / wall : 0.0));
  };
  for (const Timeline::Row& row : rows) {
    if (row.seconds > 0) add(row.name, row.seconds);
  }
  add("wall time", wall);
  return lines;
}

void log_timeline(Timeline* timeline) {
  if (timeline == nullptr) return;
  log_detail("where the time went:");
  for (const std::string& line : timeline_lines(timeline->rows())) log_detail(line);
}

}  // namespace oscar
