// What oscar-verify judges: a bundle of oscar-fit, or published K.pt,V.pt files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "checkpoint/checkpoint.h"
#include "layout/cache_windows.h"
#include "report/report.h"

namespace oscar {

// One artifact to judge: a bundle's directory, or published files.
struct SourceRequest {
  std::string bundle;     // directory, or empty
  std::string rotations;  // "K.pt,V.pt", or empty
  std::string clip;       // "K,V" ratios in place of those that published files carry; files without any: 0.96,0.92
  std::string form;       // of served_form.h; empty: the first that loses nothing of the bundle, or that of the files
};

struct VerifySource {
  std::optional<Bundle> bundle;  // as it is served; empty: neither was given
  BundleFacts facts;
};

// checkpoint may be null for bundles. UsageError for contradictory options, InputError for an unsound artifact, one
// that the form cannot carry, or one of another model.
VerifySource load_verify_source(const SourceRequest& request, const Checkpoint* checkpoint);

// What --check-only looks at, one line each; throws InputError with the first fault.
std::vector<std::string> check_verify_source(const VerifySource& source, const Checkpoint* checkpoint);

}  // namespace oscar
