// Names of the phases in a timeline of collecting (base/timeline.h).
#pragma once

namespace oscar::phase {

inline constexpr const char* kStarting = "starting";       // options, device, the model's files
inline constexpr const char* kPrompts = "prompts";         // reading prompts, tokenizing and planning
inline constexpr const char* kRange = "range";             // the sequence length up to which the model reads well
inline constexpr const char* kWeights = "weights";         // reading, copying to the device, and hashing
inline constexpr const char* kForward = "forward";         // the layers, attention included, and the embedding
inline constexpr const char* kMoments = "moments";         // sums, row sample, energy pass, W_O
inline constexpr const char* kFarPairs = "outside pairs";  // metrics of pairs outside the windows
inline constexpr const char* kSpool = "spool";         // hidden states, keys and values to and from the work directory
inline constexpr const char* kSync = "synchronizing";  // waiting until they are on disk
inline constexpr const char* kRanks = "other ranks";   // waiting for them, and merging all shares
inline constexpr const char* kSaving = "saving";       // state, finished layers and the statistics file

}  // namespace oscar::phase
