// A fuzz target: one reader of hostile bytes. It may return or throw an oscar::Error; any other exception, a sanitizer
// report, a hang or a crash is a finding. Built twice: with libFuzzer (preset fuzz, Clang) and, everywhere, with a
// small driver that mutates the seeds deterministically, as an ordinary test.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar::fuzz {

std::vector<std::string> seeds();         // well-formed inputs to start from
void read_input(std::string_view bytes);  // must not crash

// Calls read_input and lets only oscar::Error pass in silence.
void run_one(std::string_view bytes);

}  // namespace oscar::fuzz
