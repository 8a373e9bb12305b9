#include "text/tokenizer/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

#include "base/budget.h"
#include "base/errors.h"
#include "base/interrupt.h"
#include "text/unicode/unicode.h"
#include "text/unicode/unicode_tables.h"

namespace oscar {
namespace {

const OnigUChar* as_onig(const char* p) { return reinterpret_cast<const OnigUChar*>(p); }

void initialize_once() {
  static std::once_flag flag;
  std::call_once(flag, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

std::string error_text(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int n = info == nullptr ? onig_error_code_to_str(buffer, code) : onig_error_code_to_str(buffer, code, info);
  return printable(std::string_view(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(std::max(n, 0))),
                   200);
}

// Characters new in Unicode 15 and 16 have no class in older Oniguruma. Each is replaced by an older character of the
// same class and length, so that offsets stay valid. Empty if the text has none.
std::string with_stand_ins(std::string_view text) {
  std::string replaced;
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xE0) {  // all of them have three or four bytes
      ++at;
      continue;
    }
    const CodePoint c = decode_code_point(text, at);
    const bool old = (c.value > 0x31EF && c.value < 0xA7CB) || (c.value > 0xA7DC && c.value < 0x105C0);
    if (const CodeRange* row = old ? nullptr : find_row(CodeTable::kStandIn, c.value)) {
      if (replaced.empty()) replaced = text;
      std::string stand_in;
      append_utf8(stand_in, row->value);
      replaced.replace(at, c.bytes, stand_in);
    }
    at += c.bytes;
  }
  return replaced;
}

struct MatchLimits {
  explicit MatchLimits(std::size_t text_bytes) : param(onig_new_match_param()) {
    onig_initialize_match_param(param);
    onig_set_retry_limit_in_match_of_match_param(param, 10'000'000);                       // the Python package's limit
    onig_set_retry_limit_in_search_of_match_param(param, 20'000'000 + 64UL * text_bytes);  // a fraction of a second
    onig_set_match_stack_limit_size_of_match_param(param, 1U << 24);                       // entries of about 40 bytes
  }
  ~MatchLimits() { onig_free_match_param(param); }
  MatchLimits(const MatchLimits&) = delete;
  MatchLimits& operator=(const MatchLimits&) = delete;
  OnigMatchParam* param;
};

constexpr std::size_t kLong = 1 << 16;  // bytes: shorter texts are searched within a second with any pattern

// Oniguruma counts its retries but does not report them, so its work is charged by time, read periodically.
class Stopwatch {
 public:
  explicit Stopwatch(std::size_t text_bytes) : long_text_(text_bytes >= kShort) {
    Budget::spend(200 + text_bytes);
    if (long_text_) charged_ = Budget::thread_time();
  }
  void lap() {
    if (!long_text_ || ++laps_ % kLaps != 0) return;
    const auto now = Clock::now();
    if (now - read_ < std::chrono::milliseconds(10)) return;
    read_ = now;
    charged_ = Budget::spend_time(charged_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kShort = 256;  // bytes; most calls are for one word, and reading the time costs as much
                                              // as such a call
  static constexpr unsigned kLaps = 4;
  const bool long_text_;
  std::uint64_t charged_ = 0;
  Clock::time_point read_ = Clock::now();
  unsigned laps_ = 0;
};

struct Region {
  Region() : region(onig_region_new()) {}
  ~Region() { onig_region_free(region, 1); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  OnigRegion* region;
};

}  // namespace

struct Regex::Compiled {
  regex_t* regex = nullptr;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

Regex::Regex(const std::string& pattern, const std::string& where)
    : compiled_(std::make_unique<Compiled>()), where_(where) {
  initialize_once();
  OnigErrorInfo info;
  const OnigUChar* p = as_onig(pattern.data());
  const int rc = onig_new(&compiled_->regex, p, p + pattern.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                          ONIG_SYNTAX_DEFAULT, &info);
  if (rc != ONIG_NORMAL) {
    throw InputError(where + ": the pattern '" + printable(pattern, 200) + "' is not a valid regular expression (" +
                     error_text(rc, &info) + ")");
  }
}

Regex::~Regex() = default;

std::vector<Part> Regex::split(std::string_view text) const {
  std::vector<Part> parts;
  if (text.empty()) return parts;
  parts.reserve(text.size() / 4);
  const std::string replaced = with_stand_ins(text);
  if (!replaced.empty()) text = replaced;
  const MatchLimits limits(text.size());
  const Region region;
  const OnigUChar* begin = as_onig(text.data());
  const OnigUChar* end = begin + text.size();
  std::size_t from = 0, covered = 0, last_match_end = std::string_view::npos;
  Stopwatch watch(text.size());
  // One search may retry for seconds on a long text, and Oniguruma cannot be interrupted.
  std::optional<EndsAtOnce> at_once;
  if (text.size() >= kLong) at_once.emplace();
  while (from <= text.size()) {
    // The range is the entire rest, because Oniguruma also ends matches at the end of the range.
    const int rc = onig_search_with_param(compiled_->regex, begin, end, begin + from, end, region.region,
                                          ONIG_OPTION_NONE, limits.param);
    watch.lap();
    if (rc == ONIG_MISMATCH) break;
    if (rc < 0) {
      throw InputError(where_ + ": the pattern gave up on a text of " + std::to_string(text.size()) +
                       " bytes at byte " + std::to_string(from) + " (" + error_text(rc) +
                       "); use a tokenizer whose pattern does not backtrack without end, or shorter texts");
    }
    const auto match_begin = static_cast<std::size_t>(region.region->beg[0]);
    const auto match_end = static_cast<std::size_t>(region.region->end[0]);
    if (match_begin < covered || match_begin > match_end) {  // possible with \K inside a look-around
      throw InputError(where_ + ": the pattern gives matches that end before they begin; it cannot split a text");
    }
    if (match_begin == match_end && match_end == last_match_end) {
      if (from >= text.size()) break;
      from += decode_code_point(text, from).bytes;
      continue;
    }
    if (covered != match_begin) parts.push_back({covered, match_begin, false});
    parts.push_back({match_begin, match_end, true});
    covered = from = last_match_end = match_end;
  }
  if (covered != text.size()) parts.push_back({covered, text.size(), false});
  return parts;
}

std::vector<Part> split_by_string(std::string_view text, std::string_view needle) {
  std::vector<Part> parts;
  std::size_t covered = 0;
  while (!needle.empty()) {
    const std::size_t at = text.find(needle, covered);
    if (at == std::string_view::npos) break;
    if (covered != at) parts.push_back({covered, at, false});
    parts.push_back({at, at + needle.size(), true});
    covered = at + needle.size();
  }
  if (covered != text.size()) parts.push_back({covered, text.size(), false});
  return parts;
}

}  // namespace oscar
