// Loops over the layers of a model and over their KV heads, one per thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/errors.h"
#include "base/interrupt.h"
#include "base/parallel.h"

namespace oscar {

// Calls task(layer) for all layers; results must not depend on the order.
template <typename Task>
void for_each_layer(std::size_t layers, const Task& task) {
  parallel_tasks(static_cast<std::int64_t>(layers), [&](std::int64_t n) { task(static_cast<std::size_t>(n)); });
}

// Calls task(layer, head) for all; results must not depend on the order. on_done is called after each task, one call at
// a time. Adds the layer and head to a NumericalError; InterruptedError after SIGINT.
template <typename Task>
void for_each_head(std::size_t layers, std::int64_t kv_heads, const std::function<void()>& on_done, const Task& task) {
  std::mutex mutex;
  parallel_tasks(static_cast<std::int64_t>(layers) * kv_heads, [&](std::int64_t n) {
    if (interrupt_requested()) throw InterruptedError("interrupted; nothing was written, run the same command again");
    const std::int64_t layer = n / kv_heads, head = n % kv_heads;
    try {
      task(static_cast<std::size_t>(layer), head);
    } catch (const NumericalError& e) {
      throw NumericalError("layer " + std::to_string(layer) + " head " + std::to_string(head) + ": " + e.what());
    }
    if (!on_done) return;
    const std::lock_guard<std::mutex> lock(mutex);
    on_done();
  });
}

}  // namespace oscar
