// A fuzz target: one reader of hostile bytes. It may return or throw an InputError of one line; any other exception, a
// property that does not hold, a sanitizer report, a hang or a crash is a finding. Built twice: with libFuzzer (preset
// fuzz, Clang) and, everywhere, with a driver that mutates the seeds deterministically, as an ordinary test.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::fuzz {

std::vector<std::string> seeds();         // well-formed inputs to start from
void read_input(std::string_view bytes);  // must not crash

// Calls read_input and lets only an InputError pass in silence.
void run_one(std::string_view bytes);

// A property of whatever was accepted.
inline void require(bool holds, const char* property) {
  if (!holds) throw std::logic_error(std::string("does not hold: ") + property);
}

}  // namespace oscar::fuzz
