// Looks for the first fault of a table on the device (table_rules.h). For debugging and for servers that would rather
// refuse a step than write a page of another sequence: one small kernel, whose result the caller reads.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/check/table_rules.h"

namespace oscar::kernels {

// found (device memory): the fault of the smallest item, or kind kNone. Allocates nothing, does not synchronize.
cudaError_t check_tables(const StepTables& tables, FoundFault* found, cudaStream_t stream);
cudaError_t check_tables(const RunTables& tables, std::int32_t count, FoundFault* found, cudaStream_t stream);
cudaError_t check_tables(const NewRunTables& tables, std::int32_t count, FoundFault* found, cudaStream_t stream);
cudaError_t check_tables(const TileTables& tables, std::int32_t count, FoundFault* found, cudaStream_t stream);

}  // namespace oscar::kernels
