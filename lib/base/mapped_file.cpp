// Memory maps, and what happens when a mapped file becomes shorter while it is read: the kernel then sends SIGBUS at
// the first access behind the new end, in the middle of whatever reads it. Reading by calls instead would copy every
// weight once more. The handler looks the address up among the maps and ends the process with a sentence and the exit
// code of bad input; any other SIGBUS keeps its meaning.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/open_regular.h"

namespace oscar {
namespace {

// A map under watch. `message` is made beforehand: a signal handler may not allocate.
struct Slot {
  std::atomic<const std::byte*> begin{nullptr};
  std::size_t size = 0;
  char message[512] = {};
};

constexpr std::size_t kSlots = 2048;  // files mapped at once; further ones are not watched
std::array<Slot, kSlots> g_slots;
std::mutex g_slots_mutex;  // of writers; the handler only reads
struct sigaction g_before {};

void on_bus_error(int number, siginfo_t* info, void*) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const Slot& slot : g_slots) {
    const std::byte* begin = slot.begin.load(std::memory_order_acquire);
    if (begin == nullptr || address < begin || address >= begin + slot.size) continue;
    if (::write(STDERR_FILENO, slot.message, std::strlen(slot.message)) < 0) {
      // There is no other place to say it.
    }
    ::_exit(static_cast<int>(ExitCode::kBadInput));
  }
  ::sigaction(number, &g_before, nullptr);  // not ours: the access is repeated and ends as it would have
}

void install_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGBUS, &action, &g_before);
}

void watch(const std::byte* begin, std::size_t size, const fs::path& path) {
  const std::lock_guard lock(g_slots_mutex);
  static const bool installed = (install_handler(), true);
  static_cast<void>(installed);
  for (Slot& slot : g_slots) {
    if (slot.begin.load(std::memory_order_relaxed) != nullptr) continue;
    std::string name = escape_text(path.string());
    constexpr std::size_t kMostName = 300;
    // The cut may go through a character, whose rest is escaped then.
    if (name.size() > kMostName) name = "..." + escape_text(name.substr(name.size() - kMostName));
    std::snprintf(slot.message, sizeof slot.message,
                  "error: %s: became shorter while it was read, or its disk failed; run again when nothing writes to "
                  "it\n",
                  name.c_str());
    slot.size = size;
    slot.begin.store(begin, std::memory_order_release);
    return;
  }
}

void unwatch(const std::byte* begin) {
  const std::lock_guard lock(g_slots_mutex);
  for (Slot& slot : g_slots) {
    if (slot.begin.load(std::memory_order_relaxed) == begin) slot.begin.store(nullptr, std::memory_order_release);
  }
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) {
  std::uint64_t size = 0;
  const int fd = open_regular(path, &size);
  if (size > 0) {
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      const std::string why = std::strerror(errno);
      ::close(fd);
      throw EnvironmentError(path.string() + ": cannot be memory-mapped (" + why + ")");
    }
    data_ = static_cast<const std::byte*>(p);
    size_ = size;
    watch(data_, size_, path);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  unwatch(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace oscar
