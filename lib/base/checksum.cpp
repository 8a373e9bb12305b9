#include "base/checksum.h"

#include <cstring>

#include "base/formatted.h"
#include "base/random.h"

namespace oscar {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t placed(std::uint64_t word, std::uint64_t place) { return mix64(word ^ (place * 0xd1b54a32d192ed03ULL)); }

}  // namespace

std::uint64_t words_checksum(const void* data, std::size_t bytes, std::uint64_t first_word) {
  const char* from = static_cast<const char*>(data);
  const std::size_t whole = bytes / kWord;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < whole; ++i) {
    std::uint64_t word;
    std::memcpy(&word, from + i * kWord, kWord);
    sum += placed(word, first_word + i);
  }
  if (bytes % kWord != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + whole * kWord, bytes % kWord);
    sum += placed(word, first_word + whole);
  }
  return sum;
}

void Checksum::add(const void* data, std::size_t bytes) {
  const std::uint64_t length = bytes;
  sum_ += words_checksum(&length, sizeof length, words_++);
  sum_ += words_checksum(data, bytes, words_);
  words_ += (bytes + kWord - 1) / kWord;
}

std::string Checksum::hex() const { return checksum_hex(sum_); }

std::string checksum_hex(std::uint64_t sum) { return formatted("%016llx", static_cast<unsigned long long>(sum)); }

}  // namespace oscar
