// Names of the phases that a timeline of a fit has (base/timeline.h); what is collected or saved has those of
// statistics/collect_phases.h.
#pragma once

namespace oscar::phase {

inline constexpr const char* kOwnText = "own text";         // that the model writes
inline constexpr const char* kStatistics = "statistics";    // read, and hashed for the bundle's record
inline constexpr const char* kCurves = "curves";            // measured
inline constexpr const char* kTransforms = "transforms";    // and widths, metrics of the encoder
inline constexpr const char* kClips = "clips";              // their search
inline constexpr const char* kPredictions = "predictions";  // of errors, over the sampled rows

}  // namespace oscar::phase
