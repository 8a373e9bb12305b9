#include "fit/fit_options.h"

namespace oscar {

FitOptions usual_options(const MethodRow& method) {
  FitOptions o;
  o.method = method.id;
  if (!method.metric_aware()) return o;
  o.scope = Scope::kHead;
  o.value_target = ValueTarget::kOutput;
  o.encoder = Encoder::kSearch;
  // Methods that allocate bits choose the center per layer (fit/key_center.h).
  o.center = method.allocates_bits ? Center::kAuto : Center::kMean;
  o.clip = ClipMode::kNone;
  return o;
}

MomentChoice moment_choice(const FitOptions& o, ValueTarget value_target, bool centered, bool rotated) {
  MomentChoice choice{value_target, centered, rotated, {}};
  if (o.context > 0) choice.served = served_positions(o.context, o.sink, o.recent);
  return choice;
}

}  // namespace oscar
