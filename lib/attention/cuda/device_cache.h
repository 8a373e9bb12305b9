// The three-tier cache of all layers in GPU memory, laid out as the kernels read it: code pages
// (kernels/common/page_layout.h) and BF16 window pages (kernels/common/fragment_pages.h). Each layer has pools of both;
// all layers share page ids. This class manages only storage and addresses; kernels write the rows. CPU reference:
// KvCache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "attention/cuda/repeated_upload.h"
#include "cache/cache_pages.h"
#include "kernels/common/page_layout.h"
#include "layout/cache_windows.h"

namespace oscar {

struct DeviceCacheShape {
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0;
  bool quantized = true;  // false: every token stays in BF16, in sink pages
  CacheWindows windows;
  std::vector<std::int64_t> page_bytes;  // [layers] of one KV head
  std::int64_t window_page_bytes = 0;    // of one KV head
};

class DeviceCache {
 public:
  DeviceCache(const DeviceCacheShape& shape, at::Device device);

  struct Sequence {
    std::vector<std::int32_t> pages;       // page ids of coded tokens
    std::vector<std::int32_t> sink, ring;  // ids of window pages
    std::vector<std::int64_t> tokens;      // [layers]
  };
  // Allocates pools at once for the given number and length of sequences; beyond that they grow in steps.
  void expect(std::int64_t sequences, std::int64_t tokens);
  // The sequence, with room for `tokens` tokens in `layer`; an unknown id makes a new one.
  Sequence& reserve(std::int64_t layer, std::int64_t id, std::int64_t tokens);
  const Sequence* find(std::int64_t id) const;  // null: unknown
  void release(std::int64_t id);

  std::uint8_t* pages(std::int64_t layer) const;    // [.., Hkv, page_bytes of the layer]
  std::uint8_t* windows(std::int64_t layer) const;  // [.., Hkv, window_page_bytes]
  const at::Tensor& page_pool(std::int64_t layer) const { return pools_[static_cast<std::size_t>(layer)].pages; }
  std::int64_t ring_pages() const { return ring_pages_; }
  std::int64_t pages_in_use() const { return page_ids_.pages_in_use(); }  // pages of codes
  std::uint64_t allocated_bytes() const;

 private:
  struct Pools {
    at::Tensor pages, windows;  // [capacity, Hkv, bytes] bytes
  };
  struct PageCounts {
    std::int64_t sink = 0, ring = 0, body = 0;
  };
  PageCounts counts_of(std::int64_t tokens) const;
  void grow(at::Tensor& pool, std::int64_t pages, std::int64_t expected, std::int64_t bytes) const;

  DeviceCacheShape shape_;
  at::Device device_;
  std::int64_t ring_pages_;
  std::int64_t expected_pages_ = 0, expected_windows_ = 0;
  PageAllocator page_ids_, window_ids_;
  std::map<std::int64_t, Sequence> sequences_;
  std::vector<Pools> pools_;  // [layers]
};

// What one launch reads about its sequences, as one block of int32 on the device.
class StepTables {
 public:
  explicit StepTables(at::Device device) : upload_(device) {}
  void clear();
  std::size_t add(const std::vector<std::int32_t>& section);  // returns the start of the section
  void upload();
  const std::int32_t* at(std::size_t offset) const;

 private:
  std::vector<std::int32_t> host_;
  RepeatedUpload<std::int32_t> upload_;
  const std::int32_t* block_ = nullptr;
};

}  // namespace oscar
