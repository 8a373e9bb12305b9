// The artifact that oscar-verify evaluates: a bundle of oscar-fit, or published K.pt,V.pt files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "checkpoint/checkpoint.h"
#include "layout/cache_windows.h"
#include "report/report.h"

namespace oscar {

// A request for one artifact: a bundle's directory, or published files.
struct SourceRequest {
  std::string bundle;     // directory, or empty
  std::string rotations;  // "K.pt,V.pt", or empty
  std::string clip;       // "K,V" ratios that replace the recorded ones; default for files without any: 0.96,0.92
  std::string form;       // of served_form.h; empty: the first lossless form of the bundle, or the form of the files
  bool add_checkpoint = false;  // the checkpoint may be another one of the same geometry
};

struct VerifySource {
  std::optional<Bundle> bundle;  // in its target format; empty: none was given
  BundleFacts facts;
};

// checkpoint may be null for bundles. UsageError for contradictory options. InputError for a damaged artifact, for one
// that the form cannot carry, or for one of another model.
VerifySource load_verify_source(const SourceRequest& request, const Checkpoint* checkpoint);

// The checks of --check-only, one line each; InputError with the first fault.
std::vector<std::string> check_verify_source(const VerifySource& source, const Checkpoint* checkpoint);

}  // namespace oscar
