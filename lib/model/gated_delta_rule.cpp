#include "model/gated_delta_net.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "model/device.h"

namespace oscar {
namespace {

constexpr std::int64_t kChunk = 64;

// Tokens [start, start + count) of all inputs.
DeltaRuleInput tokens_of(const DeltaRuleInput& x, std::int64_t start, std::int64_t count) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(2, start, count); };
  return {part(x.q), part(x.k), part(x.v), part(x.log_decay), part(x.beta)};
}

// One chunk of C tokens. Let G_t = g_1 + ... + g_t, and let token t write u_t = beta_t (v_t - k_t S_before). The writes
// solve a unit lower triangular system:
//   u_t + beta_t sum_{s<t} exp(G_t - G_s) (k_t k_s^T) u_s = beta_t (v_t - exp(G_t) k_t S_0).
// No exponent is above 0, even if the memory decays fast.
DeltaRuleOutput chunk(const DeltaRuleInput& x, const at::Tensor& memory) {
  // Sums in FP64, because differences of large sums would lose the effect of small decays.
  const at::Tensor sum = x.log_decay.to(at::kDouble).cumsum(-1);  // [B, H, C]
  const auto fading = [](const at::Tensor& exponent) { return exponent.to(at::kFloat).exp(); };
  const at::Tensor since_start = fading(sum).unsqueeze(-1), beta = x.beta.unsqueeze(-1);  // [B, H, C, 1]
  // exp(G_t - G_s) for s <= t, otherwise 0: [B, H, C, C]. Other entries are set to 0 before exp, which could overflow
  // there.
  const at::Tensor between = fading((sum.unsqueeze(-1) - sum.unsqueeze(-2)).tril()).tril();
  const at::Tensor keys = x.k.transpose(-1, -2);
  const at::Tensor system = at::matmul(x.k * beta, keys) * between;  // its diagonal is not read
  const at::Tensor right = beta * (x.v - since_start * at::matmul(x.k, memory));
  begin_linear_algebra(system.device());
  const at::Tensor writes =
      at::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  const at::Tensor output = since_start * at::matmul(x.q, memory) + at::matmul(at::matmul(x.q, keys) * between, writes);
  const at::Tensor total = sum.narrow(-1, sum.size(-1) - 1, 1).unsqueeze(-1);  // [B, H, 1, 1]
  const at::Tensor until_end = fading(total - sum.unsqueeze(-1));              // [B, H, C, 1]
  return {output, fading(total) * memory + at::matmul((x.k * until_end).transpose(-1, -2), writes)};
}

DeltaRuleOutput step(const DeltaRuleInput& x, const at::Tensor& memory) {
  const at::Tensor faded = x.log_decay.exp().unsqueeze(-1) * memory;
  const at::Tensor write = x.beta.unsqueeze(-1) * (x.v - at::matmul(x.k, faded));
  const at::Tensor next = faded + at::matmul(x.k.transpose(-1, -2), write);
  return {at::matmul(x.q, next), next};
}

template <typename Part>
DeltaRuleOutput in_parts(const DeltaRuleInput& input, const at::Tensor& memory, std::int64_t size, const Part& part) {
  const std::int64_t tokens = input.q.size(2);
  std::vector<at::Tensor> outputs;
  DeltaRuleOutput done{{}, memory};
  for (std::int64_t start = 0; start < tokens; start += size) {
    done = part(tokens_of(input, start, std::min(size, tokens - start)), done.memory);
    outputs.push_back(done.output);
  }
  done.output = outputs.empty() ? input.v : outputs.size() == 1 ? outputs.front() : at::cat(outputs, 2);
  return done;
}

}  // namespace

DeltaRuleOutput recurrent_delta_rule(const DeltaRuleInput& input, const at::Tensor& memory) {
  return in_parts(input, memory, 1, step);
}

DeltaRuleOutput chunked_delta_rule(const DeltaRuleInput& input, const at::Tensor& memory) {
  return in_parts(input, memory, kChunk, chunk);
}

}  // namespace oscar
