// The state of a run on disk. Everything is written atomically; a point names the files of the spools it goes with.
//   lock                       held while a run uses the directory
//   run.json                   what the run is: model, prompts, options; written first
//   point.safetensors          where to go on: layer, step, and the running sums of that layer
//   layer-0003.safetensors     the finished moments of a layer
//   hidden-0.bin, hidden-1.bin hidden states before and after the layer, by turns; kv.bin: K and V of the layer
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "moments/statistics.h"

namespace oscar {

// The first `step` steps of `layer` are done; everything before that layer is done.
struct ResumePoint {
  std::int64_t layer = 0, step = 0;
  LayerMoments sums;  // running sums of the layer; undefined tensors at step 0
  at::Tensor embedding_energy;
};

class WorkDirectory {
 public:
  // Creates or opens and locks the directory. `run` identifies the run: {tool_version, model, prompts, options{...}}.
  // Its "threads" is recorded but not compared: the rounding of a GEMM depends on it, so the first value is kept.
  // With a run in it: UsageError unless `resume`, and the difference named when it is another run (InputError for the
  // model or prompts, UsageError for options). Without one, `resume` just starts.
  WorkDirectory(const fs::path& path, const Json& run, bool resume);

  const fs::path& path() const { return path_; }
  int threads() const { return threads_; }  // of the process that started the run
  fs::path file(const std::string& name) const { return path_ / name; }

  std::optional<ResumePoint> load_point() const;  // nullopt: from the beginning
  void save_point(const ResumePoint& point) const;
  LayerMoments load_layer(std::int64_t layer) const;
  void save_layer(std::int64_t layer, const LayerMoments& moments) const;

  void remove();  // the run's files, and the directory when nothing else is in it

 private:
  fs::path path_;
  std::optional<FileLock> lock_;
  int threads_ = 1;
  std::string run_id_;  // sha256 of run.json: ties every file to its run
};

}  // namespace oscar
