// Numbers as text, identical on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "report/sample_statistics.h"

namespace oscar {

std::string significant(double value, int digits);   // "0.00123", "6.6", "1.2e-09"; "-" if not a number
std::string fixed(double value, int decimals);       // "1.054"
std::string percent(double fraction, int decimals);  // 0.987 -> "98.7"
std::string grouped(std::int64_t value);             // 16384 -> "16,384"
// "0.07": distance from the value to the farther end of its interval. "-" without an interval, as with a single
// sequence.
std::string half_width(double value, const std::optional<Interval>& interval);
double rounded(double value, int digits);  // to significant decimal digits, for stable JSON

}  // namespace oscar
