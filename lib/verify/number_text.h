// Numbers as text, the same on every machine.
#pragma once

#include <cstdint>
#include <string>

namespace oscar {

std::string significant(double value, int digits);   // "0.00123", "6.6", "1.2e-09"; "-" when not a number
std::string fixed(double value, int decimals);       // "1.054"
std::string percent(double fraction, int decimals);  // 0.987 -> "98.7"
std::string grouped(std::int64_t value);             // 16384 -> "16,384"
double rounded(double value, int digits);            // to significant decimal digits, for stable JSON

}  // namespace oscar
