#include "collect/row_sample.h"

#include <algorithm>
#include <tuple>

#include "base/random.h"

namespace oscar {
namespace {

// FNV-1a, 64 bits (Fowler, Noll, Vo): folds the prompt set's hash into a stream number.
std::uint64_t fold(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

bool before(const SampledToken& a, const SampledToken& b) {
  return std::tie(a.priority, a.token) < std::tie(b.priority, b.token);
}

}  // namespace

std::uint64_t token_priority(std::uint64_t seed, std::string_view prompt_set_sha256, std::int64_t sequence,
                             std::int64_t position) {
  const std::uint64_t stream = mix64(fold(prompt_set_sha256)) ^ static_cast<std::uint64_t>(sequence);
  return random_bits(seed, stream, static_cast<std::uint64_t>(position));
}

std::vector<SampledToken> sample_sequences(std::uint64_t seed, std::string_view prompt_set_sha256,
                                           const std::vector<SampledSequence>& sequences, std::int64_t k) {
  std::vector<SampledToken> heap;  // the largest kept priority on top
  if (k <= 0) return heap;
  std::int64_t token = 0;
  for (const auto& [sequence, length] : sequences) {
    for (std::int64_t position = 0; position < length; ++position, ++token) {
      const SampledToken candidate{token_priority(seed, prompt_set_sha256, sequence, position), sequence, position,
                                   token};
      if (static_cast<std::int64_t>(heap.size()) == k) {
        if (!before(candidate, heap.front())) continue;
        std::pop_heap(heap.begin(), heap.end(), before);
        heap.pop_back();
      }
      heap.push_back(candidate);
      std::push_heap(heap.begin(), heap.end(), before);
    }
  }
  std::sort(heap.begin(), heap.end(), before);
  return heap;
}

}  // namespace oscar
