// The state of a run on disk. Everything is written atomically; a point names the spool files that belong to it.
//   lock                       held while a run uses the directory
//   run.json                   identity of the run: model, prompts, options; written first
//   point.safetensors          the layer at whose beginning to continue
//   layer-0003.safetensors     the finished moments of a layer
//   hidden-3.bin               hidden states that enter a layer (hidden_states.h)
//   kv.bin                     K and V of the layer
//   share.safetensors          a rank's results
//   share-1.safetensors, ...   in the directory of rank 0: shares from other machines
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "base/run_directory.h"
#include "checkpoint/safetensors.h"
#include "collect/spool.h"
#include "statistics/statistics.h"

namespace oscar {

// Every layer before this one is done.
struct ResumePoint {
  std::int64_t layer = 0;
  at::Tensor embedding_energy;
  SpoolSum entering;     // hidden states that enter the layer
  std::string run = {};  // id of the run that owns the directory
};

// File name of a rank's share in the directory of rank 0; rank 0: name of a rank's own share in its own directory.
std::string share_name(int rank);

// Content of a point file. InputError if its form differs. Its tensors are unchecked; state_check.h checks them.
ResumePoint read_point(const SafetensorsFile& file);

class WorkDirectory {
 public:
  // Behaves as RunDirectory; `run`: {tool_version, model, prompts, threads, options{...}}.
  WorkDirectory(const fs::path& path, const Json& run, bool resume);

  const fs::path& path() const { return run_.path(); }
  int threads() const { return run_.threads(); }
  fs::path file(const std::string& name) const { return run_.file(name); }

  std::optional<ResumePoint> load_point() const;  // nullopt: start from the beginning
  void save_point(const ResumePoint& point) const;
  fs::path layer_file(std::int64_t layer) const;
  LayerMoments load_layer(std::int64_t layer) const;  // content is unchecked; state_check.h checks it
  void save_layer(std::int64_t layer, const LayerMoments& moments) const;

  void remove() { run_.remove(); }

 private:
  RunDirectory run_;
};

}  // namespace oscar
