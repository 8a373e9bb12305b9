#include "pipeline/common/common_options.h"

#include <charconv>
#include <cstdint>
#include <tuple>

#include "base/errors.h"

namespace oscar {
namespace {

template <typename Number>
std::pair<Number, Number> parse_pair(const std::string& text, const char* option) {
  const std::size_t comma = text.find(',');
  std::pair<Number, Number> pair{};
  const auto read = [](const std::string& part, Number& value) {
    const auto end = std::from_chars(part.data(), part.data() + part.size(), value);
    return end.ec == std::errc() && end.ptr == part.data() + part.size() && !part.empty();
  };
  if (comma == std::string::npos || !read(text.substr(0, comma), pair.first) ||
      !read(text.substr(comma + 1), pair.second)) {
    throw UsageError(std::string(option) + " is '" + text + "', expected two numbers with a comma between them");
  }
  return pair;
}

}  // namespace

std::pair<std::string, std::string> split_pair(const std::string& text, const char* option, const char* form) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos || text.find(',', comma + 1) != std::string::npos || comma == 0 ||
      comma + 1 == text.size()) {
    throw UsageError(std::string(option) + " '" + text + "' is not of the form " + form);
  }
  return {text.substr(0, comma), text.substr(comma + 1)};
}

std::pair<float, float> parse_clip_pair(const std::string& text) {
  const auto pair = parse_pair<float>(text, "--clip");
  for (const float ratio : {pair.first, pair.second}) {
    if (!(ratio >= 0.0F && ratio <= 1.0F)) throw UsageError("--clip " + text + ": ratios are from 0 (off) to 1");
  }
  return pair;
}

CacheWindows parse_windows(const std::string& text, const char* option) {
  CacheWindows windows;
  std::tie(windows.sink, windows.recent) = parse_pair<std::int64_t>(text, option);
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (windows.sink < 0 || windows.recent < 1 || windows.sink > kMost || windows.recent > kMost) {
    throw UsageError(std::string(option) + " " + text +
                     ": the sink is a number from 0, the recent window one from 1 (the current " + "token is in it)");
  }
  return windows;
}

}  // namespace oscar
