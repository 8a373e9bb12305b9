// Memory maps, and the handling of a mapped file that becomes shorter during reading. The kernel sends SIGBUS at the
// first access past the new end, anywhere in the code. Reading with system calls instead would copy all weights once
// more. The handler looks up the address in the table of maps and ends the process with a message and the exit code for
// bad input. Any other SIGBUS keeps its normal effect.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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

// A watched map. `message` is made in advance, because a signal handler may not allocate.
struct Slot {
  std::atomic<const std::byte*> begin{nullptr};
  std::size_t size = 0;
  int fd = -1;  // of a file that is large enough for reads
  char message[512] = {};

  bool holds(const std::byte* address) const {
    const std::byte* first = begin.load(std::memory_order_acquire);
    return first != nullptr && address >= first && address < first + size;
  }
};

constexpr std::size_t kSlots = 2048;                      // files mapped at once; further ones are not watched
constexpr std::size_t kMostOpen = 512;                    // descriptors kept; a process has 1024 by default
constexpr std::size_t kLeastOpen = std::size_t{1} << 20;  // minimum file size for keeping its descriptor
constexpr const char kErrorPrefix[] = "error: ";
std::array<Slot, kSlots> g_slots;
std::mutex g_slots_mutex;  // for writers; the handler only reads
std::size_t g_open = 0;    // descriptors kept by slots
struct sigaction g_before {};

void on_bus_error(int number, siginfo_t* info, void*) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const Slot& slot : g_slots) {
    if (!slot.holds(address)) continue;
    if (::write(STDERR_FILENO, slot.message, std::strlen(slot.message)) < 0) {
      // There is no other way to report it.
    }
    ::_exit(static_cast<int>(ExitCode::kBadInput));
  }
  ::sigaction(number, &g_before, nullptr);  // not from a map here: the access repeats and ends with the default effect
}

void install_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGBUS, &action, &g_before);
}

// True: keeps the descriptor, which unwatch() closes.
bool watch(const std::byte* begin, std::size_t size, const fs::path& path, int fd) {
  const std::lock_guard lock(g_slots_mutex);
  static const bool installed = (install_handler(), true);
  static_cast<void>(installed);
  for (Slot& slot : g_slots) {
    if (slot.begin.load(std::memory_order_relaxed) != nullptr) continue;
    std::string name = escape_text(path.string());
    constexpr std::size_t kMostName = 300;
    // The cut may split a character; its rest is then escaped.
    if (name.size() > kMostName) name = "..." + escape_text(name.substr(name.size() - kMostName));
    std::snprintf(slot.message, sizeof slot.message,
                  "%s%s: became shorter while it was read, or its disk failed; run again when nothing writes to it\n",
                  kErrorPrefix, name.c_str());
    slot.size = size;
    const bool keep = size >= kLeastOpen && g_open < kMostOpen;
    if (keep) slot.fd = fd, ++g_open;
    slot.begin.store(begin, std::memory_order_release);
    return keep;
  }
  return false;
}

void unwatch(const std::byte* begin) {
  const std::lock_guard lock(g_slots_mutex);
  for (Slot& slot : g_slots) {
    if (slot.begin.load(std::memory_order_relaxed) != begin) continue;
    slot.begin.store(nullptr, std::memory_order_release);
    if (slot.fd >= 0) ::close(std::exchange(slot.fd, -1)), --g_open;
  }
}

}  // namespace

MappedFile::MappedFile(const fs::path& path, Links links) {
  std::uint64_t size = 0;
  const int fd = open_regular(path, &size, links);
  if (size > 0) {
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      const std::string why = std::strerror(errno);
      ::close(fd);
      throw EnvironmentError(path.string() + ": cannot be memory-mapped (" + why + ")");
    }
    data_ = static_cast<const std::byte*>(p);
    size_ = size;
    if (watch(data_, size_, path, fd)) return;
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

void read_mapped(std::span<const std::byte> from, std::byte* to) {
  // The caller owns the map, so its slot does not change meanwhile.
  const auto slot = std::find_if(g_slots.begin(), g_slots.end(), [&](const Slot& s) { return s.holds(from.data()); });
  if (slot == g_slots.end() || slot->fd < 0) {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return;
  }
  const auto offset = static_cast<std::uint64_t>(from.data() - slot->begin.load(std::memory_order_relaxed));
  if (read_at(slot->fd, to, from.size(), offset)) return;
  const std::string_view message(slot->message + sizeof kErrorPrefix - 1);
  throw InputError(std::string(message.substr(0, message.find('\n'))));
}

}  // namespace oscar
