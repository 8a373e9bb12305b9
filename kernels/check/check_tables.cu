// One block: tables have a few thousand rows at most, and the smallest faulty item decides.
#include "kernels/check/check_tables.h"

#include "kernels/common/launch_kernel.cuh"

namespace oscar::kernels {
namespace {

constexpr int kThreads = 256;

template <class Rules>
__global__ void __launch_bounds__(kThreads)
    check_kernel(const __grid_constant__ Rules rules, int count, FoundFault* found) {
  __shared__ int first;
  if (threadIdx.x == 0) first = count;
  __syncthreads();
  FoundFault mine;
  for (int i = static_cast<int>(threadIdx.x); i < count && mine.kind == TableFault::kNone; i += kThreads) {
    mine = rules(i);
    if (mine.kind != TableFault::kNone) atomicMin(&first, i);
  }
  __syncthreads();
  if (first == count) {
    if (threadIdx.x == 0) *found = FoundFault{};
  } else if (static_cast<int>(threadIdx.x) == first % kThreads) {
    *found = mine;  // the thread whose first faulty item it is
  }
}

template <class Rules>
cudaError_t launch(const Rules& rules, std::int32_t count, FoundFault* found, cudaStream_t stream) {
  return launch_kernel<check_kernel<Rules>>(grid_of(1), kThreads, stream, rules, count, found);
}

}  // namespace

cudaError_t check_tables(const StepTables& tables, FoundFault* found, cudaStream_t stream) {
  return launch(tables, tables.batch, found, stream);
}
cudaError_t check_tables(const RunTables& tables, std::int32_t count, FoundFault* found, cudaStream_t stream) {
  return launch(tables, count, found, stream);
}
cudaError_t check_tables(const NewRunTables& tables, std::int32_t count, FoundFault* found, cudaStream_t stream) {
  return launch(tables, count, found, stream);
}
cudaError_t check_tables(const TileTables& tables, std::int32_t count, FoundFault* found, cudaStream_t stream) {
  return launch(tables, count, found, stream);
}

}  // namespace oscar::kernels
