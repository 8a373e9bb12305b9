// Methods that oscar-verify compares a bundle with and that need a fit of their own, such as `oscar` beside a bundle of
// `waterfill`. They are fitted from the statistics of the bundle, where these are beside it.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "pipeline/verify/verify_source.h"

namespace oscar {

// The names among `methods` for which this is so: oscar-fit makes them, and none of the bundles has a row of this name.
std::vector<std::string> methods_to_fit(const std::vector<std::string>& methods,
                                        const std::vector<VerifySource>& sources);

// The method with its usual options, for the layers, windows and contexts of the bundle in `directory`. InputError if
// the statistics are not there, or are not those that the bundle records.
VerifySource fit_beside(const std::string& method, const Bundle& bundle, const std::string& directory,
                        c10::Device device);

}  // namespace oscar
