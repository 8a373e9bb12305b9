#include "base/errors.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

void run_one(std::string_view bytes) {
  try {
    read_input(bytes);
  } catch (const InputError& e) {
    // What hostile input should get: exit code 3 and one clear sentence.
    const std::string_view message = e.what();
    require(!message.empty() && message.size() < 2000, "an error is a sentence");
    require(message.find('\n') == std::string_view::npos, "an error is one line");
  }
}

}  // namespace oscar::fuzz
