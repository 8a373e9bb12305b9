// The options a bundle was fitted with, read back from its provenance.
#pragma once

#include "bundle/bundle.h"
#include "rotation/fit_options.h"

namespace oscar {

// What decides the transforms: method, scope, value target, center, metric, damping, exponent, group. Clips, widths and
// the budget are not options of a new fit but facts of the bundle's layers. InputError naming the entry where the
// provenance is of another tool, or holds a value that oscar-fit does not write.
FitOptions fit_options_of(const Bundle& bundle);

}  // namespace oscar
