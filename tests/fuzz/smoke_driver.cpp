// Mutates each seed a fixed number of times, the same way in every run, and feeds the results to the target. On a
// failure the input is left beside the program as <name>.crash.
// usage: fuzz_x [mutations of each seed] [seconds at most]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "base/random.h"
#include "fuzz/fuzz_target.h"

namespace {

using oscar::random_bits;

// One to four edits: a flipped bit, a new byte, a cut, a removed, repeated or moved span, a boundary number.
std::string mutate(std::string text, std::uint64_t stream) {
  std::uint64_t n = 0;
  const auto next = [&](std::uint64_t bound) { return bound == 0 ? 0 : random_bits(1, stream, n++) % bound; };
  static const char* const kNumbers[] = {"-1",  "0",    "18446744073709551615", "9223372036854775807",
                                         "1e9", "null", "4294967296",           "-9223372036854775808"};
  for (std::uint64_t edit = next(4) + 1; edit > 0; --edit) {
    const std::size_t at = next(text.size() + 1);
    const std::size_t length = next(text.size() - at + 1) % 64;
    switch (next(8)) {
      case 0:
        if (at < text.size()) text[at] ^= static_cast<char>(1U << next(8));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(next(256));
        break;
      case 2:
        text.resize(at);
        break;
      case 3:
        text.erase(at, length);
        break;
      case 4:
        text.insert(at, text.substr(at, length));
        break;
      case 5:
        text.insert(next(text.size() + 1), text.substr(at, length));
        break;
      case 6:
        text.insert(at, kNumbers[next(std::size(kNumbers))]);
        break;
      default:  // replace a whole number
        if (const std::size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos) {
          const std::size_t end = text.find_first_not_of("0123456789", digit);
          text.replace(digit, (end == std::string::npos ? text.size() : end) - digit,
                       kNumbers[next(std::size(kNumbers))]);
        }
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t mutations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 20;
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t stream = 0, inputs = 0;
  for (const std::string& seed : oscar::fuzz::seeds()) {
    oscar::fuzz::read_input(seed);  // a seed must be accepted: an error here fails the test
    for (std::uint64_t i = 0; i < mutations; ++i) {
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds) break;
      const std::string input = mutate(seed, stream++);
      try {
        oscar::fuzz::run_one(input);
      } catch (const std::exception& e) {
        std::ofstream(std::string(argv[0]) + ".crash", std::ios::binary) << input;
        std::printf("input %llu: not an oscar::Error: %s\n", static_cast<unsigned long long>(stream), e.what());
        return 1;
      }
      ++inputs;
    }
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(inputs));
  return inputs > 0 ? 0 : 1;
}
