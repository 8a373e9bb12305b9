// Runs a fuzz target without libFuzzer, so that every compiler can. The input of a failure is left in <program>.crash.
//   fuzz_x [--runs N] [--seconds S] [--seed K]   the seeds and mutations of them: N inputs, or what S seconds allow
//   fuzz_x FILE...                               just these inputs
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <iostream>

#include "base/files.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/mutations.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using oscar::fuzz::Mutator;

constexpr std::size_t kMaxSize = 1 << 16;
std::string current;  // the input under test
std::string crash_file;

void print(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// Only calls that are safe in a signal handler.
void save_current() {
  const int fd = ::open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) return;
  const bool whole = ::write(fd, current.data(), current.size()) == static_cast<ssize_t>(current.size());
  ::close(fd);
  print(whole ? "the input was saved in " : "the input could not be saved whole in ");
  print(crash_file.c_str());
  print("\n");
}
void on_signal(int number) {
  save_current();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void run_current() {
  // A copy of its exact size, so that a sanitizer sees a read one byte past the end.
  const std::vector<char> exact(current.begin(), current.end());
  oscar::fuzz::run_one({exact.data(), exact.size()});
}

int run(const std::vector<std::string>& args) {
  std::uint64_t runs = 20000, seconds = 60, seed = 1;
  std::vector<std::string> files;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const bool has_value = i + 1 < args.size();
    if (args[i] == "--runs" && has_value) {
      runs = std::stoull(args[++i]);
    } else if (args[i] == "--seconds" && has_value) {
      seconds = std::stoull(args[++i]);
    } else if (args[i] == "--seed" && has_value) {
      seed = std::stoull(args[++i]);
    } else {
      files.push_back(args[i]);
    }
  }
  for (const std::string& file : files) {
    current = oscar::read_file(file);
    run_current();
  }
  if (!files.empty()) return 0;

  for (const std::string& input : oscar::fuzz::seeds()) {
    current = input;
    oscar::fuzz::read_input(current);  // a seed must be accepted
  }
  const Mutator mutator(oscar::fuzz::seeds(), seed);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t n = 0;
  for (; n < runs; ++n) {
    if (n % 64 == 0 && std::chrono::steady_clock::now() - start > std::chrono::seconds(seconds)) break;
    current = mutator.input(n, kMaxSize);
    run_current();
  }
  std::cout << n << " inputs\n";
  return n > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  crash_file = std::string(argv[0]) + ".crash";
  for (const int number : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGBUS}) std::signal(number, on_signal);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(save_current);
#endif
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::cerr << "not a refusal of one line: " << e.what() << "\n";
    save_current();
    return 1;
  }
}
