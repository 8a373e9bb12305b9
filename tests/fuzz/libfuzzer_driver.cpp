// libFuzzer's entry points. With FUZZ_SEEDS=DIR the seeds are written there first, as the start of the corpus.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/files.h"
#include "fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* folder = std::getenv("FUZZ_SEEDS")) {
    int index = 0;
    for (const std::string& seed : oscar::fuzz::seeds()) {
      oscar::write_file_atomic(oscar::fs::path(folder) / ("seed" + std::to_string(index++)), seed);
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  oscar::fuzz::run_one({reinterpret_cast<const char*>(data), size});
  return 0;
}
