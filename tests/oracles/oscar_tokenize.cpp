// Drives the tokenizer for the Python tests: records on stdin, records on stdout.
//   oscar_tokenize tokenizer.json encode|encode-special   texts (u32 bytes, then the bytes) -> ids (u32 count, then
//   i32) oscar_tokenize tokenizer.json decode|decode-all       ids -> texts; decode-all keeps special tokens
//   oscar_tokenize tokenizer.json bench                   all of stdin as one text -> "bytes tokens seconds"
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "base/errors.h"
#include "text/tokenizer/tokenizer.h"

namespace {

bool read_count(std::uint32_t* count) { return std::fread(count, sizeof *count, 1, stdin) == 1; }

template <typename Container>
Container read_items(std::uint32_t count) {
  Container items(count, {});
  if (std::fread(items.data(), sizeof items[0], count, stdin) != count)
    throw oscar::InputError("stdin: truncated record");
  return items;
}

template <typename Container>
void write_items(const Container& items) {
  const auto count = static_cast<std::uint32_t>(items.size());
  std::fwrite(&count, sizeof count, 1, stdout);
  std::fwrite(items.data(), sizeof items[0], count, stdout);
}

int run(const std::string& path, const std::string& mode) {
  using Ids = std::vector<std::int32_t>;
  const oscar::Tokenizer tokenizer = oscar::Tokenizer::from_file(path);
  if (mode == "bench") {
    const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = tokenizer.encode(text, false);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%zu %zu %.6f\n", text.size(), ids.size(), seconds.count());
    return 0;
  }
  for (std::uint32_t count = 0; read_count(&count);) {
    if (mode == "encode" || mode == "encode-special") {
      write_items(tokenizer.encode(read_items<std::string>(count), mode == "encode-special"));
    } else if (mode == "decode" || mode == "decode-all") {
      write_items(tokenizer.decode(read_items<Ids>(count), mode == "decode"));
    } else {
      throw oscar::UsageError("unknown mode '" + mode + "'");
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw oscar::UsageError("usage: oscar_tokenize tokenizer.json mode");
    return run(argv[1], argv[2]);
  } catch (const oscar::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return static_cast<int>(e.code());
  }
}
