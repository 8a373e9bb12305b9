// Names of the phases that a timeline of collecting has (base/timeline.h).
#pragma once

namespace oscar::phase {

inline constexpr const char* kStarting = "starting";       // loading libraries, options, device, the model's files
inline constexpr const char* kPrompts = "prompts";         // read and made into ids and a plan
inline constexpr const char* kRange = "range";             // how long a sequence the model reads well
inline constexpr const char* kWeights = "weights";         // read, copied to the device, and hashed for the fingerprint
inline constexpr const char* kForward = "forward";         // the layers, attention included, and the embedding
inline constexpr const char* kMoments = "moments";         // sums, row sample, energy pass, W_O
inline constexpr const char* kFarPairs = "outside pairs";  // their metrics
inline constexpr const char* kSpool = "spool";         // hidden states, keys and values to and from the work directory
inline constexpr const char* kSync = "synchronizing";  // waiting until they are on the disk
inline constexpr const char* kSpectra = "spectra";     // of each layer, for its line
inline constexpr const char* kRanks = "other ranks";   // waiting for them, and adding up what all found
inline constexpr const char* kSaving = "saving";       // state, finished layers and the statistics file

}  // namespace oscar::phase
