#include "rotation/two_level_clip.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "codec/two_levels.h"
#include "rotation/clip_search.h"
#include "rotation/codebook_basis.h"

namespace oscar {
namespace {

// Squared error of rows [n, d] with a clip ratio.
double error_of(const at::Tensor& rows, std::int64_t group, float clip) {
  at::Tensor coded = rows.clone();
  two_level_rows(coded.mutable_data_ptr<float>(), rows.size(0), rows.size(1), group, clip);
  return (coded - rows).to(at::kDouble).square().sum().item<double>();
}

}  // namespace

void set_two_levels(const Statistics& s, const FitOptions& o, std::size_t layer, Side side, SideTransform& transform) {
  transform.uniform_bits = 1;
  if (o.clip != ClipMode::kSearch) return;
  const CodebookRows rows(s, layer, side, false, o.sink, o.max_rows);
  if (rows.count() == 0) return;
  const std::int64_t group = o.quant_group > 0 ? o.quant_group : s.head_dim;
  const at::Tensor x = to_basis(transform, rows.read(0, rows.count()));  // [Hkv, N, d]
  const auto each = static_cast<std::int64_t>(transform.clip.size());
  for (std::int64_t i = 0; i < each; ++i) {
    const at::Tensor of_ratio = (each == 1 ? x.reshape({-1, s.head_dim}) : x[i]).contiguous();
    double least = -1.0;
    for (const float clip : clip_candidates(s.head_dim)) {
      const double error = error_of(of_ratio, group, clip);
      if (least >= 0.0 && error >= least) continue;
      least = error, transform.clip[static_cast<std::size_t>(i)] = clip;
    }
  }
}

}  // namespace oscar
