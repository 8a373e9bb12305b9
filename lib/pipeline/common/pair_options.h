// Options with two values separated by a comma. UsageError names the option, the value found and what was expected.
#pragma once

#include <string>
#include <utility>

#include "layout/cache_windows.h"

namespace oscar {

// "K.pt,V.pt" -> its two parts, neither empty. form: the expected form, for the message.
std::pair<std::string, std::string> split_pair(const std::string& text, const char* option, const char* form);

// --clip K,V: ratios of keys and values from 0 (off) to 1.
std::pair<float, float> parse_clip_pair(const std::string& text);

// --windows SINK,RECENT: tokens. The sink may be 0; the recent window is at least 1, because it contains the current
// token.
CacheWindows parse_windows(const std::string& text);

}  // namespace oscar
