// A loop over the KV heads of all layers, one head to a thread.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/errors.h"
#include "base/interrupt.h"

namespace oscar {

// task(layer, head) for all; results must not depend on the order. on_done is called after each, one call at a time.
// NumericalError gains the place; InterruptedError after SIGINT.
template <typename Task>
void for_each_head(std::size_t layers, std::int64_t kv_heads, const std::function<void()>& on_done, const Task& task) {
  std::mutex mutex;
  at::parallel_for(0, static_cast<std::int64_t>(layers) * kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      if (interrupt_requested()) throw InterruptedError("interrupted; nothing was written, run the same command again");
      const std::int64_t layer = n / kv_heads, head = n % kv_heads;
      try {
        task(static_cast<std::size_t>(layer), head);
      } catch (const NumericalError& e) {
        throw NumericalError("layer " + std::to_string(layer) + " head " + std::to_string(head) + ": " + e.what());
      }
      if (!on_done) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      on_done();
    }
  });
}

}  // namespace oscar
