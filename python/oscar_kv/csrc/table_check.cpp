#include "oscar_kv/csrc/table_check.h"

#include <cstdlib>
#include <string_view>

#include "oscar_kv/csrc/fault_text.h"

namespace oscar_kv {
namespace {

using oscar::kernels::FoundFault;

// find(place, stream): launches the kernel that writes the first fault to `place`.
template <class Find>
void check(const Arguments& arguments, const char* item, Find find) {
  if (!checks_tables()) return;
  const cudaStream_t stream = arguments.stream();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  arguments.launched(cudaStreamIsCapturing(stream, &capture), "asking for a capture");
  if (capture != cudaStreamCaptureStatusNone) return;
  const Tensor place = arguments.empty({sizeof(FoundFault) / sizeof(std::int32_t)}, ScalarType::Int);
  arguments.launched(find(static_cast<FoundFault*>(place.data_ptr()), stream), "check_tables");
  FoundFault found;
  arguments.launched(cudaMemcpyAsync(&found, place.data_ptr(), sizeof found, cudaMemcpyDeviceToHost, stream),
                     "reading the check of tables");
  arguments.launched(cudaStreamSynchronize(stream), "the check of tables");
  if (found.kind != oscar::kernels::TableFault::kNone) arguments.refuse(fault_text(found, item));
}

}  // namespace

bool checks_tables() {
  static const bool on = [] {
    const char* value = std::getenv("OSCAR_KV_CHECK_TABLES");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  return on;
}

void check_tables(const Arguments& arguments, const oscar::kernels::StepTables& tables) {
  check(arguments, "sequence",
        [&](FoundFault* found, cudaStream_t stream) { return oscar::kernels::check_tables(tables, found, stream); });
}

void check_tables(const Arguments& arguments, const oscar::kernels::RunTables& tables, std::int64_t count) {
  check(arguments, "run", [&](FoundFault* found, cudaStream_t stream) {
    return oscar::kernels::check_tables(tables, arguments.int32(count, "runs"), found, stream);
  });
}

void check_tables(const Arguments& arguments, const oscar::kernels::NewRunTables& tables, std::int64_t count) {
  check(arguments, "run", [&](FoundFault* found, cudaStream_t stream) {
    return oscar::kernels::check_tables(tables, arguments.int32(count, "runs"), found, stream);
  });
}

void check_tables(const Arguments& arguments, const oscar::kernels::TileTables& tables, std::int64_t count) {
  check(arguments, "tile", [&](FoundFault* found, cudaStream_t stream) {
    return oscar::kernels::check_tables(tables, arguments.int32(count, "tiles"), found, stream);
  });
}

}  // namespace oscar_kv
