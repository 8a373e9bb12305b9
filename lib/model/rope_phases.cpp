#include "model/rope_phases.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace oscar {
namespace {

void fill_row(const RopeFrequencies& f, std::int64_t position, float* row) {
  const std::int64_t half = f.inverse.size(0);
  const float* inverse = f.inverse.const_data_ptr<float>();
  for (std::int64_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inverse[i];
    row[i] = static_cast<float>(f.attention_factor * std::cos(static_cast<double>(angle)));
    row[half + i] = static_cast<float>(f.attention_factor * std::sin(static_cast<double>(angle)));
  }
}

at::Tensor plain(const at::Tensor& x, at::Device device) { return x.to(device, at::kFloat); }

}  // namespace

at::Tensor phase_rows(const RopeFrequencies& frequencies, const std::vector<std::int64_t>& positions) {
  const std::int64_t d = 2 * frequencies.inverse.size(0);
  at::Tensor rows = at::empty({static_cast<std::int64_t>(positions.size()), d}, at::kFloat);
  auto* out = rows.mutable_data_ptr<float>();
  for (const std::int64_t position : positions) fill_row(frequencies, position, out), out += d;
  return rows;
}

at::Tensor rotated_means(const at::Tensor& means, const at::Tensor& rope_phases) {
  const std::int64_t half = means.size(1) / 2;
  const at::Device device = rope_phases.device();
  const at::Tensor m = plain(means, device), c = plain(rope_phases, device).unsqueeze(1);  // [H, d], [T, 1, d]
  const at::Tensor m1 = m.narrow(1, 0, half), m2 = m.narrow(1, half, half);
  const at::Tensor cosine = c.narrow(2, 0, half), sine = c.narrow(2, half, half);
  return at::cat({m1 * cosine - m2 * sine, m2 * cosine + m1 * sine}, 2);
}

at::Tensor phase_queries(const at::Tensor& q, const at::Tensor& means) {
  const std::int64_t half = q.size(2) / 2;
  const at::Tensor x = plain(q, q.device()),
                   m = plain(means, q.device()).repeat_interleave(q.size(1) / means.size(0), 0);  // [Hq, d]
  const at::Tensor q1 = x.narrow(2, 0, half), q2 = x.narrow(2, half, half);
  const at::Tensor m1 = m.narrow(1, 0, half), m2 = m.narrow(1, half, half);
  return at::cat({q1 * m1 + q2 * m2, q2 * m1 - q1 * m2}, 2);
}

at::Tensor RopePhases::rows(std::int64_t first, std::int64_t count) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t held = table_.defined() ? table_.size(0) : 0;
  if (first + count > held) {
    std::vector<std::int64_t> positions;
    for (std::int64_t p = held; p < std::max(first + count, held + held / 2); ++p) positions.push_back(p);
    const at::Tensor more = phase_rows(frequencies_, positions);
    table_ = held > 0 ? at::cat({table_, more}) : more;
  }
  return table_.narrow(0, first, count);
}

}  // namespace oscar
