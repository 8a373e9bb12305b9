// Reads the options of a bundle's fit from its provenance.
#pragma once

#include "bundle/bundle.h"
#include "fit/fit_options.h"

namespace oscar {

// The options that determine the transforms: method, scope, value target, center, metric, damping, exponent, group.
// Clips, widths and the budget are not options here but facts of the bundle's layers. InputError naming the entry if
// the provenance comes from another tool or holds a value that oscar-fit does not write.
FitOptions fit_options_of(const Bundle& bundle);

}  // namespace oscar
