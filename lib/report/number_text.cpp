#include "report/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/formatted.h"

namespace oscar {

std::string significant(double value, int digits) {
  if (std::isnan(value)) return "-";
  return formatted("%.*g", digits, value);
}

std::string fixed(double value, int decimals) {
  if (std::isnan(value)) return "-";
  if (std::fabs(value) >= 1e15) return significant(value, 6);
  return formatted("%.*f", decimals, value);
}

std::string percent(double fraction, int decimals) { return fixed(100.0 * fraction, decimals); }

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t at = 0; at < digits.size(); ++at) {
    const std::size_t left = digits.size() - at;
    if (at > 0 && left % 3 == 0 && digits[at - 1] != '-') text += ',';
    text += digits[at];
  }
  return text;
}

std::string half_width(double value, const std::optional<Interval>& interval) {
  return interval ? significant(std::max(value - interval->low, interval->high - value), 2) : "-";
}

double rounded(double value, int digits) {
  if (!std::isfinite(value)) return value;
  return std::strtod(formatted("%.*e", digits - 1, value).c_str(), nullptr);
}

}  // namespace oscar
