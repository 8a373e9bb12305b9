#include <ATen/ATen.h>

#include <algorithm>

#include "base/cuda/launch.h"
#include "collect/device_sums.h"
#include "kernels/gram/gram.h"
#include "kernels/gram/ordered_gram.h"

namespace oscar {

namespace {

bool built(const at::Tensor& x) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && kernels::gram_built(static_cast<int>(x.size(2)));
}

// p: has shift and row_sum, if any. x [T, H, d] contiguous.
void add(at::Tensor& sum, const at::Tensor& x, kernels::GramParams p) {
  const int kv_heads = static_cast<int>(sum.size(0)), d = static_cast<int>(x.size(2));
  const at::Tensor workspace = at::empty(
      {static_cast<std::int64_t>(kernels::gram_workspace_bytes(kv_heads, d) / sizeof(double))}, sum.options());
  p.x = static_cast<const std::uint16_t*>(x.const_data_ptr());
  p.stride = x.stride(0);
  p.sum = sum.data_ptr<double>();
  p.workspace = workspace.data_ptr<double>();
  p.tokens = x.size(0);
  p.heads = static_cast<std::int32_t>(x.size(1)), p.kv_heads = kv_heads, p.head_dim = d;
  check_launch(kernels::add_gram(p, current_stream()), "add_gram");
}

}  // namespace

bool device_gram(at::Tensor& sum, const at::Tensor& x) {
  if (!built(x)) return false;
  add(sum, x.contiguous(), {});
  return true;
}

bool device_gram_about_mean(at::Tensor& sum, at::Tensor& row_sum, const at::Tensor& x) {
  if (!built(x) || x.size(1) != sum.size(0)) return false;
  if (x.size(0) == 0) return true;
  const at::Tensor rows = x.contiguous(), mean = rows.mean(0);  // any shift near the rows works: BF16
  kernels::GramParams p{.shift = static_cast<const std::uint16_t*>(mean.const_data_ptr()),
                        .row_sum = row_sum.data_ptr<double>()};
  add(sum, rows, p);
  return true;
}

bool device_ordered_gram(at::Tensor& sum, const at::Tensor& x, std::int64_t block) {
  const int heads = static_cast<int>(x.size(0)), d = static_cast<int>(x.size(2)), rows = static_cast<int>(block);
  if (!x.is_cuda() || x.scalar_type() != at::kFloat || !x.is_contiguous() || !kernels::ordered_gram_built(d)) {
    return false;
  }
  const std::size_t bytes = kernels::ordered_gram_workspace_bytes(x.size(1), heads, d, rows);
  const at::Tensor workspace = at::empty({static_cast<std::int64_t>(bytes / sizeof(float))}, x.options());
  kernels::OrderedGramParams p{.x = x.const_data_ptr<float>(),
                               .sum = sum.data_ptr<double>(),
                               .workspace = workspace.data_ptr<float>(),
                               .rows = x.size(1)};
  p.matrices = heads, p.head_dim = d, p.block = rows;
  check_launch(kernels::ordered_gram(p, current_stream()), "ordered_gram");
  return true;
}

at::Tensor device_long_grams(const std::vector<at::Tensor>& runs) {
  constexpr std::size_t kMost = kernels::LongGramParams::kMostRuns;
  const std::int64_t matrices = runs[0].size(0), d = runs[0].size(2);
  const at::Tensor out = at::empty({static_cast<std::int64_t>(runs.size()), matrices, d, d}, runs[0].options());
  for (std::size_t first = 0; first < runs.size(); first += kMost) {
    kernels::LongGramParams p;
    p.runs = static_cast<std::int32_t>(std::min(kMost, runs.size() - first));
    for (std::size_t i = 0; i < static_cast<std::size_t>(p.runs); ++i) {
      p.x[i] = runs[first + i].const_data_ptr<float>(), p.rows[i] = runs[first + i].size(1);
    }
    p.products = out.data_ptr<float>() + static_cast<std::int64_t>(first) * out.stride(0);
    p.matrices = static_cast<std::int32_t>(matrices), p.head_dim = static_cast<std::int32_t>(d);
    check_launch(kernels::long_gram(p, current_stream()), "long_gram");
  }
  return out;
}

}  // namespace oscar
