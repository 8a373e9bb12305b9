// Options that are two values with a comma between them. UsageError says which option, what was found and what was
// expected.
#pragma once

#include <string>
#include <utility>

#include "layout/cache_windows.h"

namespace oscar {

// "K.pt,V.pt" -> its two parts, neither empty. form: as the message shows it.
std::pair<std::string, std::string> split_pair(const std::string& text, const char* option, const char* form);

// --clip K,V: ratios of keys and values from 0 (off) to 1.
std::pair<float, float> parse_clip_pair(const std::string& text);

// --windows SINK,RECENT: tokens, the sink from 0 and the recent window from 1, because the current token is in it.
CacheWindows parse_windows(const std::string& text);

}  // namespace oscar
