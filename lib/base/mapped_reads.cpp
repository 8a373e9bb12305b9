// Threads that read mapped files. They persist between calls: a model layer has a dozen tensors, and starting threads
// for each would take as long as reading a small one.
#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>

#include "base/files.h"

namespace oscar {
namespace {

constexpr std::size_t kPart = std::size_t{1} << 20;  // bytes that a thread reads at once
constexpr unsigned kMostReaders = 8;                 // including the caller; more gain little, and other threads
                                                     // compute meanwhile

class Readers {
 public:
  explicit Readers(unsigned count) {
    for (unsigned i = 1; i < count; ++i) std::thread([this] { serve(); }).detach();
  }

  void read(std::span<const std::byte> from, std::byte* to) {
    const std::scoped_lock one(calls_);
    std::unique_lock lock(mutex_);
    from_ = from, to_ = to, next_ = 0, error_ = nullptr;
    changed_.notify_all();
    work(lock);
    changed_.wait(lock, [&] { return busy_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  [[noreturn]] void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return next_ < from_.size(); });
      work(lock);
    }
  }

  // Takes parts until none is left. `lock` is released only during a read.
  void work(std::unique_lock<std::mutex>& lock) {
    ++busy_;
    while (next_ < from_.size()) {
      const std::size_t first = next_, bytes = std::min(kPart, from_.size() - first);
      const std::span<const std::byte> part = from_.subspan(first, bytes);
      std::byte* const to = to_ + first;
      next_ += bytes;
      lock.unlock();
      std::exception_ptr error;
      try {
        read_mapped(part, to);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error, next_ = from_.size();
    }
    if (--busy_ == 0) changed_.notify_all();
  }

  std::mutex calls_;  // serializes calls
  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<const std::byte> from_;
  std::byte* to_ = nullptr;
  std::size_t next_ = 0;  // first byte not yet assigned
  int busy_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void read_mapped_by_threads(std::span<const std::byte> from, std::byte* to) {
  if (from.size() <= kPart) return read_mapped(from, to);
  // Never deleted: its threads wait for work until the process ends.
  static Readers* const readers = new Readers(std::clamp(std::thread::hardware_concurrency(), 1u, kMostReaders));
  readers->read(from, to);
}

}  // namespace oscar
