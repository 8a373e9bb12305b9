// The artifact that oscar-verify evaluates: a bundle of oscar-fit, or published K.pt,V.pt files.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "checkpoint/checkpoint.h"
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

// Methods that oscar-verify compares a bundle with and that need a fit of their own, such as `oscar` beside a bundle of
// `waterfill`. They are fitted from the statistics of the bundle, where these are beside it.

// The names among `methods` for which this is so: oscar-fit makes them, and none of the bundles has a row of this name.
std::vector<std::string> methods_to_fit(const std::vector<std::string>& methods,
                                        const std::vector<VerifySource>& sources);

// The method with its usual options, for the layers, windows and contexts of the bundle in `directory`. InputError if
// the statistics are not there, or are not those that the bundle records.
VerifySource fit_beside(const std::string& method, const Bundle& bundle, const std::string& directory,
                        c10::Device device);

}  // namespace oscar
