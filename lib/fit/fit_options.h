// Options of a fit.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "codec/codec.h"
#include "fit/side_moments.h"
#include "fit/targets.h"
#include "registry/registry.h"
#include "transform/profile_allocation.h"

namespace oscar {

enum class ClipMode { kSearch, kFixed, kNone };
// Which means are subtracted. kNone: none. kKey: the mean of each head from keys (the format sglang-branch-v3 can hold
// it). kMean: the means of keys and of values. kRope: from keys the mean of keys before RoPE, rotated to their
// position, and from values their mean. kAuto: kMean, and kRope in layers in which it removes more (key_center.h).
enum class Center { kNone, kKey, kMean, kRope, kAuto };

struct FitOptions {
  std::string method = "oscar";  // registry/registry.h
  Scope scope = Scope::kLayer;
  ValueTarget value_target = ValueTarget::kExact;
  ClipMode clip = ClipMode::kSearch;
  float key_clip = 0.0f, value_clip = 0.0f;  // kFixed
  std::int64_t quant_group = 0;              // quantization group in channels; 0: one group per head
  std::int64_t sink = 64;                    // earlier positions are never quantized, so their rows do not count
  std::int64_t recent = 256;                 // the last tokens of a context are never quantized
  // Keys of balanced and waterfill are fitted to the positions of a context of this many tokens; 0: to the positions of
  // the calibration prompts.
  std::int64_t context = 0;
  bool one_clip = false;        // kSearch: one ratio per side for the model, as published formats need
  std::int64_t max_rows = 512;  // number of sampled tokens used, both halves together
  Encoder encoder = Encoder::kMinMax;
  c10::Device device = c10::kCPU;  // device of the eigensolver; the search runs on the CPU
  Center center = Center::kNone;
  // For the methods balanced and waterfill.
  double damping = 1e-3;                             // damping of the diagonals
  std::vector<Widths> key_profiles, value_profiles;  // waterfill: [L] widths chosen elsewhere (measured allocation)
  std::string allocate = "analytic";                 // waterfill: the source of the widths; only recorded
  double bits = kUsualBits;                          // waterfill: budget in bits per element, parameters included
  std::function<void()> on_step;                     // progress, called fit_steps() times, by one thread at a time
  Timeline* timeline = nullptr;                      // if set, gets the phases of fit_phases.h
};

// The options of a method that none are given for: the published method as published, others at their best.
FitOptions usual_options(const MethodRow& method);

// The rows and the metric of a side that the options select.
MomentChoice moment_choice(const FitOptions& options, ValueTarget value_target, bool centered, bool rotated = false);

}  // namespace oscar
