// Pages and windows of a method's cache, and what runs it.
#pragma once

#include <memory>

#include "attention/paged_backend.h"
#include "cache/kv_cache.h"
#include "cache/kv_method.h"
#include "checkpoint/model_config.h"

namespace oscar {

// Row pages shared by keys and values, or pages of a side. std::invalid_argument for a method without pages
// (KvMethod::paged), InputError for a layout that the head size cannot carry.
KvCacheSpec cache_spec(const KvMethod& method, const ModelConfig& model);

// The CPU, or the GPU's fast kernels where they hold the cache, else the fallback. EnvironmentError where
// decode_unsupported() has something to say.
std::unique_ptr<PagedBackend> make_backend(const KvMethod& method, const ModelConfig& model, at::Device device);

}  // namespace oscar
