// Deterministic mutations of byte strings: the n-th input of a run depends on the seeds, the seed number and n alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar::fuzz {

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::uint64_t seed_number);
  // Seeds themselves first, then mutations of them, at most max_size bytes.
  std::string input(std::uint64_t n, std::size_t max_size) const;

 private:
  std::vector<std::string> seeds_;
  std::uint64_t seed_number_;
};

}  // namespace oscar::fuzz
