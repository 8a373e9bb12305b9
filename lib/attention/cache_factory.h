// Makes the pages and windows of a method's cache, and its backend.
#pragma once

#include <memory>

#include "attention/paged_backend.h"
#include "cache/kv_cache.h"
#include "cache/kv_method.h"
#include "checkpoint/model_config.h"

namespace oscar {

// Row pages shared by keys and values, or separate pages per side. std::invalid_argument for a method without pages
// (KvMethod::paged), InputError for a layout that does not support the head size.
KvCacheSpec cache_spec(const KvMethod& method, const ModelConfig& model);

// The CPU backend, or on a GPU the fast kernels if they support the cache.
std::unique_ptr<PagedBackend> make_backend(const KvMethod& method, const ModelConfig& model, at::Device device);

}  // namespace oscar
