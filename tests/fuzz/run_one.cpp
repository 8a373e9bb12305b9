#include "base/errors.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

void run_one(std::string_view bytes) {
  try {
    read_input(bytes);
  } catch (const Error&) {
    // Refused with a documented error: what hostile input should get.
  }
}

}  // namespace oscar::fuzz
