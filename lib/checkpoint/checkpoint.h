// A Hugging Face checkpoint, presented as one table of tensors: config.json plus one safetensors file or a sharded set.
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
  // Opens config.json and all shards (model.safetensors or model.safetensors.index.json). InputError for a missing
  // shard, a name that leaves the directory, a tensor with different data in two shards, or an adapter beside the
  // weights. The shards' content counts; a tensor that only the index names is absent.
  static Checkpoint open(const ModelLocation& location);
  // The same, but shards that the index names may be absent, as for a plan. Then tensors have only a name, and
  // weight_bytes() comes from the index. InputError if a tensor needs information from the shards.
  static Checkpoint open_index(const ModelLocation& location);
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;
  Checkpoint(const Checkpoint&) = delete;  // index_ points into shards_
  Checkpoint& operator=(const Checkpoint&) = delete;

  const ModelLocation& location() const { return location_; }
  const ModelConfig& config() const { return config_; }
  // Sets the longest sequence of a run [tokens] in config().rope. It selects the frequencies of longrope and dynamic
  // RoPE, one set for all sequences. Call it before any computation; without it, no sequence counts as long.
  void set_run_length(std::int64_t tokens) { config_.rope.run_length = config_.local_rope.run_length = tokens; }
  const TensorView* find(std::string_view name) const;
  const TensorView& at(std::string_view name) const;  // InputError when absent
  std::vector<std::string> names() const;             // sorted
  // The name in the file. It differs if the file lacks the prefix "model.", which names here always have.
  std::string stored_name(const std::string& name) const;
  bool renames() const { return !stored_names_.empty(); }  // whether some name differs
  std::uint64_t weight_bytes() const;                      // 0: the index does not say
  bool has_shards() const { return names_only_.empty(); }

  // "v2:sha256:<hex>". It covers config.json without keys that programs rewrite (canonical_config()) and every tensor's
  // name, dtype and shape. It also covers 4 KiB samples from the start, middle and end of each tensor's data. A
  // fine-tune of the same architecture thus has another fingerprint, and even large models need little reading.
  std::string fingerprint() const;

 private:
  explicit Checkpoint(const ModelLocation& location);  // reads config.json
  void add_shard_tensors();
  void add_prefix();

  ModelLocation location_;
  ModelConfig config_;
  std::string canonical_config_;
  std::vector<SafetensorsFile> shards_;
  std::vector<TensorView> names_only_;                            // from an index whose shards are absent
  std::list<TensorView> renamed_;                                 // from files without the prefix
  std::map<std::string, std::string, std::less<>> stored_names_;  // of renamed tensors: the name in the file
  std::uint64_t bytes_of_index_ = 0;
  std::map<std::string, const TensorView*, std::less<>> index_;
};

// The part of config.json that identifies a model: canonical_json() without the keys that programs rewrite, also in
// objects whose names end in "_config" (text_config), except quantization_config. docs/format-bundle.md lists them.
std::string canonical_config(const Json& config);

}  // namespace oscar
