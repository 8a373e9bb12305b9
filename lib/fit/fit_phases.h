// Names of the phases in a timeline of a fit (base/timeline.h); collecting and saving have the phases of
// collect/collect_phases.h.
#pragma once

namespace oscar::phase {

inline constexpr const char* kOwnText = "own text";         // self-generated calibration data
inline constexpr const char* kStatistics = "statistics";    // reading, and hashing for the bundle's record
inline constexpr const char* kCurves = "curves";            // measuring curves
inline constexpr const char* kTransforms = "transforms";    // fitting transforms, widths, and metrics of the encoder
inline constexpr const char* kClips = "clips";              // searching clip ratios
inline constexpr const char* kPredictions = "predictions";  // predicting errors over the sampled rows
inline constexpr const char* kHeldOut = "held-out text";    // the measurement at the end

}  // namespace oscar::phase
