// Work of a run that no pass waits for: jobs that follow one another on a thread of their own and, on a GPU, on a
// stream of its own, so that waiting for their copies does not wait for the passes.
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
  // most: bytes that jobs may hold while they wait.
  BackgroundJobs(c10::Device device, std::uint64_t most);
  ~BackgroundJobs();  // waits for the job under way; the others are left out
  BackgroundJobs(const BackgroundJobs&) = delete;
  BackgroundJobs& operator=(const BackgroundJobs&) = delete;

  // The job begins when those before it are done, and so is what the current stream was given until now. held: bytes of
  // the tensors that it keeps alive; waits until there is room for them. Both calls throw what a job has thrown, after
  // which no other is begun.
  void add(std::uint64_t held, std::function<void()> job);
  void wait();  // until all are done

  bool idle() const;

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
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first one is under way
  std::uint64_t held_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // the last member: it uses all others
};

}  // namespace oscar
