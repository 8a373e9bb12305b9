// Matrix products of a batch by cuBLAS, each shape by the fastest of the algorithms that cuBLAS proposes for it: its
// first choice for hundreds of rows is up to a third slower.
#pragma once

#include <ATen/core/Tensor.h>
#include <cublasLt.h>

#include <map>
#include <tuple>

namespace oscar::bench {

class StepProducts {
 public:
  StepProducts();
  ~StepProducts();
  StepProducts(const StepProducts&) = delete;
  StepProducts& operator=(const StepProducts&) = delete;

  // y = x w^T, or y += x w^T, on the current stream: x [m, k], w [n, k], y [m, n], BF16, FP32 sums rounded once. The
  // first call of a shape times algorithms (y is then the same as after one call) and may not be captured.
  void multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y, bool add);

 private:
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>;
  Plan make_plan(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y, bool add) const;
  cublasStatus_t run(const Plan& plan, const at::Tensor& x, const at::Tensor& w, const at::Tensor& y, bool add) const;

  cublasLtHandle_t handle_ = nullptr;
  at::Tensor workspace_;
  std::map<Key, Plan> plans_;
};

}  // namespace oscar::bench
