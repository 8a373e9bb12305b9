// What a fit is asked for.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "codec/codec.h"
#include "rotation/profile_allocation.h"
#include "rotation/side_moments.h"
#include "rotation/targets.h"

namespace oscar {

enum class ClipMode { kSearch, kFixed, kNone };
// Keys and values stored as they are, keys without the mean of each head (what format sglang-v3 can carry), both, or
// keys without the mean of keys before RoPE, rotated to their position, and values without theirs. kAuto: kMean, and
// kRope in the layers where that takes away more (key_center.h).
enum class Center { kNone, kKey, kMean, kRope, kAuto };

struct FitOptions {
  std::string method = "oscar";  // registry/registry.h
  Scope scope = Scope::kLayer;
  ValueTarget value_target = ValueTarget::kExact;
  ClipMode clip = ClipMode::kSearch;
  float key_clip = 0.0f, value_clip = 0.0f;  // kFixed
  std::int64_t quant_group = 0;              // quantization group; 0: whole head
  std::int64_t sink = 64;                    // positions below are never quantized, so their rows do not count
  std::int64_t recent = 256;                 // the last tokens of a context are never quantized
  // Keys of balanced and waterfill are fitted to the positions of a context of this many tokens; 0: to those of the
  // calibration prompts.
  std::int64_t context = 0;
  bool one_clip = false;        // one ratio a side for the whole model, as published formats carry; kSearch
  std::int64_t max_rows = 512;  // sampled tokens used, both halves together
  Encoder encoder = Encoder::kMinMax;
  c10::Device device = c10::kCPU;  // of the eigensolver; the search runs on the CPU
  Center center = Center::kNone;
  // What weighs errors: in balanced and waterfill, and in the clip search.
  MetricSource metric = MetricSource::kAuto;
  // Methods balanced and waterfill.
  double damping = 1e-3;                               // of the diagonals
  double exponent = 1.0;                               // 0: orthogonal, 1: fully balanced
  std::vector<Widths> key_profiles, value_profiles;    // waterfill: [L] widths chosen elsewhere (measured curves)
  std::string allocate = "closed";                     // waterfill: what chose the widths; for the record
  double bits = 2.25;                                  // waterfill: budget of each element, parameters included
  std::vector<std::uint8_t> key_widths, value_widths;  // balanced: [4] for layout blocks, the same in all layers
  std::function<void()> on_step;                       // progress, fit_steps() times; called from one thread at a time
  Timeline* timeline = nullptr;                        // where it is set, it gets the phases of fit_phases.h
};

// What the rows and metric of a side are taken from, by the options.
MomentChoice moment_choice(const FitOptions& options, ValueTarget value_target, bool centered, bool rotated = false);

}  // namespace oscar
