#include "tests/bench/decode_step/step_products.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace oscar::bench {
namespace {

constexpr std::int64_t kWorkspaceBytes = 64 << 20, kFlushBytes = 256 << 20;
constexpr int kProposals = 48, kTries = 5;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + ": cuBLAS status " + std::to_string(static_cast<int>(status)));
}

cublasLtMatrixLayout_t layout(std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t out = nullptr;
  check(cublasLtMatrixLayoutCreate(&out, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
        "cublasLtMatrixLayoutCreate");
  return out;
}

std::vector<cublasLtMatmulHeuristicResult_t> proposals(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                       cublasLtMatrixLayout_t w, cublasLtMatrixLayout_t x,
                                                       cublasLtMatrixLayout_t y) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::size_t workspace = kWorkspaceBytes;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                       sizeof workspace);
  std::vector<cublasLtMatmulHeuristicResult_t> found(kProposals);
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation, w, x, y, y, preference, kProposals, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  found.resize(static_cast<std::size_t>(count));
  return found;
}

}  // namespace

StepProducts::StepProducts() {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
  workspace_ = at::empty({kWorkspaceBytes}, at::TensorOptions(at::kByte).device(at::kCUDA));
}

StepProducts::~StepProducts() {
  for (auto& [key, plan] : plans_) {
    cublasLtMatmulDescDestroy(plan.operation);
    for (cublasLtMatrixLayout_t l : {plan.w, plan.x, plan.y}) cublasLtMatrixLayoutDestroy(l);
  }
  cublasLtDestroy(handle_);
}

// cuBLAS counts by columns: y^T [n, m] = (w^T)^T [n, k] x^T [k, m].
cublasStatus_t StepProducts::run(const Plan& plan, const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                                 bool add) const {
  const float one = 1.0f, kept = add ? 1.0f : 0.0f;
  return cublasLtMatmul(handle_, plan.operation, &one, w.const_data_ptr(), plan.w, x.const_data_ptr(), plan.x, &kept,
                        y.const_data_ptr(), plan.y, y.data_ptr(), plan.y, &plan.algorithm, workspace_.data_ptr(),
                        kWorkspaceBytes, c10::cuda::getCurrentCUDAStream().stream());
}

StepProducts::Plan StepProducts::make_plan(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                                           bool add) const {
  const std::int64_t m = x.size(0), k = x.size(1), n = w.size(0);
  Plan plan;
  check(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  plan.w = layout(k, n), plan.x = layout(k, m), plan.y = layout(n, m);
  const at::Tensor flush = at::empty({kFlushBytes}, workspace_.options()), to = at::zeros_like(y);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  double best = 1e30;
  for (const auto& proposal : proposals(handle_, plan.operation, plan.w, plan.x, plan.y)) {
    Plan tried = plan;
    tried.algorithm = proposal.algo;
    std::vector<float> times;
    for (int i = 0; i < kTries; ++i) {
      cudaMemsetAsync(flush.data_ptr(), i, kFlushBytes, stream);
      cudaEventRecord(begin, stream);
      if (run(tried, x, w, to, add) != CUBLAS_STATUS_SUCCESS) break;
      cudaEventRecord(end, stream);
      float ms = 0;
      if (cudaEventSynchronize(end) != cudaSuccess || cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) break;
      times.push_back(ms);
    }
    if (times.size() < kTries) continue;
    std::sort(times.begin(), times.end());
    if (times[kTries / 2] < best) best = times[kTries / 2], plan.algorithm = tried.algorithm;
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  if (best > 1e29) throw std::runtime_error("cuBLAS has no algorithm for a product of the step");
  return plan;
}

void StepProducts::multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y, bool add) {
  const Key key{x.size(0), x.size(1), w.size(0), add};
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, make_plan(x, w, y, add)).first;
  check(run(found->second, x, w, y, add), "cublasLtMatmul");
}

}  // namespace oscar::bench
