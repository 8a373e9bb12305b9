// A Hugging Face checkpoint: config.json plus one safetensors file or a sharded set, seen as one table of tensors.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/model_location.h"
#include "checkpoint/safetensors.h"

namespace oscar {

class Checkpoint {
 public:
  // Opens config.json and all shards (model.safetensors or model.safetensors.index.json). InputError on any fault:
  // a missing shard, a name that leaves the directory, one tensor with other numbers in two shards, an adapter beside
  // the weights. What the shards hold counts; a tensor that only the index names is absent.
  static Checkpoint open(const ModelLocation& location);
  // The same where shards that the index names may be absent, as for a plan: without them tensors have a name and
  // nothing else, and weight_bytes() is what the index says. InputError for a tensor that only the shards can tell of.
  static Checkpoint open_index(const ModelLocation& location);
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;
  Checkpoint(const Checkpoint&) = delete;  // index_ points into shards_
  Checkpoint& operator=(const Checkpoint&) = delete;

  const ModelLocation& location() const { return location_; }
  const ModelConfig& config() const { return config_; }
  // Frequencies of longrope and dynamic RoPE follow from the longest sequence of a run, in tokens: one set for all of
  // its sequences, in config().rope. To be called before anything is computed; without it, no sequence is long.
  void set_run_length(std::int64_t tokens) { config_.rope.run_length = config_.local_rope.run_length = tokens; }
  const TensorView* find(std::string_view name) const;
  const TensorView& at(std::string_view name) const;  // InputError when absent
  std::vector<std::string> names() const;             // sorted
  // The name in the file, where the checkpoint was saved without the prefix "model." and names here have it.
  std::string stored_name(const std::string& name) const;
  std::uint64_t weight_bytes() const;  // 0: the index does not say
  bool has_shards() const { return names_only_.empty(); }

  // "v2:sha256:<hex>" over config.json without the keys that programs rewrite (canonical_config.h), every tensor's
  // name, dtype and shape, and samples of 4 KiB from the start, middle and end of its data: a fine-tune of the same
  // architecture has another fingerprint, and reading it costs little even for large models.
  std::string fingerprint() const;
  // In the version that `other` has, so that the two can be compared: version 1, "sha256:<hex>", of older files holds
  // the geometry as it was read from config.json in place of the file.
  std::string fingerprint_like(const std::string& other) const;

 private:
  Checkpoint() = default;
  void add_shard_tensors();
  void add_prefix();

  ModelLocation location_;
  ModelConfig config_;
  std::string canonical_config_;
  std::vector<SafetensorsFile> shards_;
  std::vector<TensorView> names_only_;  // of an index whose shards are absent
  std::list<TensorView> renamed_;       // of files without the prefix
  std::string added_prefix_;
  std::uint64_t bytes_of_index_ = 0;
  std::map<std::string, const TensorView*, std::less<>> index_;
};

}  // namespace oscar
