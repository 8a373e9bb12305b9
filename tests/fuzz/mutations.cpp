#include "fuzz/mutations.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <limits>

#include "base/random.h"

namespace oscar::fuzz {
namespace {

// A stream of numbers for one input.
class Dice {
 public:
  Dice(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_bits(seed_, stream_, n_++) % n); }

 private:
  std::uint64_t seed_, stream_, n_ = 0;
};

// Numbers at which sizes, signs and offsets change their meaning.
constexpr std::uint64_t kEdges[] = {0,          1,          2,          7,          63,         64,
                                    127,        128,        255,        256,        32767,      65535,
                                    65536,      0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32, (1ULL << 53) + 1,
                                    1ULL << 62, INT64_MAX,  1ULL << 63, UINT64_MAX, 100000000,  100000001};
constexpr const char* kWords[] = {"-1",
                                  "1e400",
                                  "1.5",
                                  "null",
                                  "true",
                                  "{}",
                                  "[]",
                                  "\"\"",
                                  "[[[[",
                                  "{\"a\":",
                                  "\"\\u0000\"",
                                  "\"\\ud800\"",
                                  "\xff",
                                  "\xc3\xa9",
                                  "\\",
                                  "\n",
                                  "18446744073709551616",
                                  "-9223372036854775808",
                                  "../",
                                  "PK\x05\x06"};

void replace_number(std::string* s, Dice& dice) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < s->size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>((*s)[i])) != 0;
    if (digit && (i == 0 || std::isdigit(static_cast<unsigned char>((*s)[i - 1])) == 0)) starts.push_back(i);
  }
  if (starts.empty()) return;
  const std::size_t at = starts[dice.below(starts.size())];
  std::size_t end = at;
  while (end < s->size() && std::isdigit(static_cast<unsigned char>((*s)[end])) != 0) ++end;
  s->replace(at, end - at, std::to_string(kEdges[dice.below(std::size(kEdges))]));
}

void overwrite_integer(std::string* s, Dice& dice) {
  const std::size_t width = std::size_t{1} << dice.below(4);
  if (s->size() < width) return;
  const std::size_t at = dice.below(s->size() - width + 1);
  const std::uint64_t value = kEdges[dice.below(std::size(kEdges))] + dice.below(3) - 1;
  for (std::size_t i = 0; i < width; ++i) (*s)[at + i] = static_cast<char>(value >> (8 * i));
}

void mutate(std::string* s, const std::string& other, Dice& dice) {
  const std::size_t at = dice.below(s->size() + 1), length = 1 + dice.below(dice.below(4) == 0 ? 64 : 4);
  switch (dice.below(10)) {
    case 0:
      if (at < s->size()) (*s)[at] = static_cast<char>((*s)[at] ^ 1 << dice.below(8));
      break;
    case 1:
      if (at < s->size()) (*s)[at] = static_cast<char>(dice.below(256));
      break;
    case 2:
      s->erase(at, length);
      break;
    case 3:
      s->insert(at, s->substr(dice.below(s->size() + 1), length));
      break;
    case 4:
      s->insert(at, kWords[dice.below(std::size(kWords))]);
      break;
    case 5:
      overwrite_integer(s, dice);
      break;
    case 6:
    case 7:
      replace_number(s, dice);
      break;
    case 8:
      if (dice.below(4) == 0) s->resize(at);
      break;
    default:  // splice
      s->replace(at, length, other.substr(std::min(other.size(), dice.below(other.size() + 1)), 1 + dice.below(64)));
  }
}

}  // namespace

Mutator::Mutator(std::vector<std::string> seeds, std::uint64_t seed_number)
    : seeds_(std::move(seeds)), seed_number_(seed_number) {
  if (seeds_.empty()) seeds_.emplace_back();
}

std::string Mutator::input(std::uint64_t n, std::size_t max_size) const {
  if (n < seeds_.size()) return seeds_[n];
  Dice dice(seed_number_, n);
  std::string s = seeds_[dice.below(seeds_.size())];
  for (std::size_t steps = 1 + dice.below(4); steps > 0; --steps) {
    mutate(&s, seeds_[dice.below(seeds_.size())], dice);
  }
  s.resize(std::min(s.size(), max_size));
  return s;
}

}  // namespace oscar::fuzz
