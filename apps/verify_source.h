// What oscar-verify judges: a bundle of oscar-fit, or published K.pt,V.pt files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "checkpoint/checkpoint.h"
#include "runtime/windows.h"
#include "verify/report.h"

namespace oscar {

struct VerifySource {
  std::optional<Bundle> bundle;  // empty: neither was given
  BundleFacts facts;
};

// rotations: "K.pt,V.pt", or empty. clip: "K,V" ratios for published files, which carry none; empty: 0.96,0.92.
// checkpoint may be null for bundles. UsageError for contradictory options, InputError for an unsound artifact.
VerifySource load_verify_source(const std::string& bundle, const std::string& rotations, const std::string& clip,
                                const Checkpoint* checkpoint);

// What --check-only looks at, one line each; throws InputError with the first fault.
std::vector<std::string> check_verify_source(const VerifySource& source, const Checkpoint* checkpoint);

// "64,256" -> windows. UsageError otherwise.
WindowPolicy parse_windows(const std::string& text);

}  // namespace oscar
