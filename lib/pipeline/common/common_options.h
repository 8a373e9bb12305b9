// Options that all commands share, as values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "layout/cache_windows.h"

namespace oscar {

struct CommonOptions {
  std::string model, revision;
  std::string device = "auto";  // auto | cpu | cuda[:i]; see device_choice.h
  std::string dtype = "auto";   // auto | bfloat16 | float32
  std::uint64_t seed = 0;
  std::string output;
  std::string config;  // the file of --config, checked like any other input
  bool overwrite = false, dry_run = false, json = false, no_progress = false, verbose = false, quiet = false;
};

std::string tool_version();  // "0.1.0", as recorded in files

// Options with two values separated by a comma. UsageError names the option, the value found and what was expected.

// "K.pt,V.pt" -> its two parts, neither empty. form: the expected form, for the message.
std::pair<std::string, std::string> split_pair(const std::string& text, const char* option, const char* form);

// --clip K,V: ratios of keys and values from 0 (off) to 1.
std::pair<float, float> parse_clip_pair(const std::string& text);

// --windows SINK,RECENT, and options like it: tokens. The sink may be 0; the recent window is at least 1, because it
// contains the current token.
CacheWindows parse_windows(const std::string& text, const char* option = "--windows");

}  // namespace oscar
