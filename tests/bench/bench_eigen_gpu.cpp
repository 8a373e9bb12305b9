// 576 eigenproblems of 128 x 128 in FP64 (keys and values of 36 layers with 8 KV heads): one cuSOLVER batch against
// at::linalg_eigh on the same GPU in the same run. Median of the runs after a warm-up, milliseconds, as JSON.
//   bench_eigen_gpu [matrices] [d]
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "rotation/eigen.h"
#include "rotation/eigen_batched.h"

namespace {

double milliseconds(int runs, const std::function<at::Tensor()>& work) {
  std::vector<double> times;
  for (int i = 0; i <= runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work().sum().item<double>();  // waits for the GPU
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i > 0) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (at::detail::getCUDAHooks().deviceCount() == 0) {
    std::fprintf(stderr, "no GPU\n");
    return 4;
  }
  const long long count = argc > 1 ? std::atoll(argv[1]) : 576, d = argc > 2 ? std::atoll(argv[2]) : 128;
  at::manual_seed(1);
  const at::Tensor x = at::randn({count, 4 * d, d}, at::kDouble);
  const at::Tensor host = at::matmul(x.transpose(1, 2), x), device = host.cuda();
  const std::vector<std::string> names(static_cast<std::size_t>(count), "gram");
  const double batched = milliseconds(7, [&] { return oscar::batched_eigen(device).values; });
  const double checked = milliseconds(5, [&] { return oscar::symmetric_eigen(host, names, device.device()).values; });
  const double torch = milliseconds(3, [&] { return std::get<0>(at::linalg_eigh(device)); });
  const double cpu = milliseconds(1, [&] { return oscar::symmetric_eigen(host, names).values; });
  std::printf(
      "{\"matrices\": %lld, \"d\": %lld, \"batched_ms\": %.2f, \"checked_with_transfers_ms\": %.2f, "
      "\"linalg_eigh_gpu_ms\": %.2f, \"cpu_ms\": %.2f}\n",
      count, d, batched, checked, torch, cpu);
  return 0;
}
