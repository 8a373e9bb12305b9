#include "fit/fit_options.h"

namespace oscar {

MomentChoice moment_choice(const FitOptions& o, ValueTarget value_target, bool centered, bool rotated) {
  MomentChoice choice{value_target, o.metric, centered, rotated, {}};
  if (o.context > 0) choice.served = served_positions(o.context, o.sink, o.recent);
  return choice;
}

}  // namespace oscar
