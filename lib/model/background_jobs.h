// Runs jobs that no forward pass waits for, one after another on a separate thread. On a GPU they use a separate
// stream, so waiting for their copies does not block the passes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace oscar {

class BackgroundJobs {
 public:
  // most: total bytes that waiting jobs may hold.
  BackgroundJobs(c10::Device device, std::uint64_t most);
  ~BackgroundJobs();  // waits for the running job and drops the others
  BackgroundJobs(const BackgroundJobs&) = delete;
  BackgroundJobs& operator=(const BackgroundJobs&) = delete;

  // The job starts after the earlier jobs and after the work queued so far on the current stream. held: bytes of the
  // tensors that the job keeps alive; the call waits until they fit. Both calls rethrow a job's exception; after one,
  // no further job starts.
  void add(std::uint64_t held, std::function<void()> job);
  void wait();  // until all jobs are done

 private:
  struct Job {
    std::uint64_t held;
    std::function<void()> run;
    std::optional<c10::Event> ready;
  };
  void work();
  void run(Job& job) const;

  c10::Device device_;
  std::uint64_t most_;
  std::optional<c10::Stream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first one is running
  std::uint64_t held_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // last member, because it uses all others
};

}  // namespace oscar
