// Kernels that bring rows into the windows and pages of a cache on a GPU. Their bytes equal CachePages::write() on the
// CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/cuda/device_phases.h"
#include "cache/kv_cache.h"
#include "cache/kv_method.h"
#include "kernels/quantize/quantize_pages.h"
#include "layout/side.h"
#include "model/attention.h"

namespace oscar {

// One side of all layers.
class PageWriter {
 public:
  virtual ~PageWriter() = default;

  // The rows of a call as stored in the windows, [T, Hkv, d] BF16. rows: [T, Hkv, d] from kernel_rows().
  virtual at::Tensor window_rows(std::int64_t layer, const at::Tensor& rows, const SequenceBatch& batch) = 0;
  // Codes rows of the windows, [.., Hkv, d] BF16. pool: [pages, page bytes]; bad: int32 on the device, as in
  // kernels::QuantizePagesParams.
  virtual void write(std::int64_t layer, const at::Tensor& rows, const std::vector<kernels::PageRun>& runs,
                     const at::Tensor& pool, std::int32_t* bad) = 0;
};

// pages: of each layer. method and phases must outlive the writer.
std::unique_ptr<PageWriter> make_page_writer(const KvMethod& method, const KvCacheSpec& spec, Side side,
                                             DevicePhases& phases, at::Device device);

}  // namespace oscar
