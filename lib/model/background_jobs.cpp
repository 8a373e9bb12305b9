#include "model/background_jobs.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace oscar {

BackgroundJobs::BackgroundJobs(c10::Device device, std::uint64_t most) : device_(device), most_(most) {
  if (device.is_cuda())
    stream_ = c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, true);  // high priority: small work goes before the passes' long
                                                           // kernels
  thread_ = std::jthread([this] { work(); });
}

BackgroundJobs::~BackgroundJobs() {
  const std::lock_guard lock(mutex_);
  ends_ = true;
  changed_.notify_all();
}

void BackgroundJobs::add(std::uint64_t held, std::function<void()> job) {
  Job next{held, std::move(job), std::nullopt};
  if (stream_) {
    next.ready.emplace(device_.type());
    next.ready->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || jobs_.empty() || held_ + held <= most_; });
  if (error_) std::rethrow_exception(error_);
  held_ += held;
  jobs_.push_back(std::move(next));
  changed_.notify_all();
}

void BackgroundJobs::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || jobs_.empty(); });
  if (error_) std::rethrow_exception(error_);
}

void BackgroundJobs::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || (!error_ && !jobs_.empty()); });
    if (ends_) return;
    Job& job = jobs_.front();  // stays valid: appending to a deque does not move it
    lock.unlock();
    std::exception_ptr error;
    try {
      run(job);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    held_ -= job.held;
    jobs_.pop_front();
    changed_.notify_all();
  }
}

// The job's tensors were allocated on another stream, which may reuse freed memory at once. It must wait until this
// stream has finished with them.
void BackgroundJobs::run(Job& job) const {
  const c10::InferenceMode no_gradients;
  if (!stream_) return job.run();
  const c10::DeviceGuard device(device_);
  const c10::StreamGuard stream(*stream_);
  job.ready->block(*stream_);
  const c10::impl::VirtualGuardImpl guard(device_.type());
  try {
    job.run();
  } catch (...) {
    guard.synchronizeStream(*stream_);
    throw;
  }
  guard.synchronizeStream(*stream_);
}

}  // namespace oscar
