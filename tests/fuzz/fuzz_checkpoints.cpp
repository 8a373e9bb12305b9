// checkpoints.json of a bundle.
#include "base/json.h"
#include "bundle/checkpoints.h"
#include "checkpoint/model_name.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

std::vector<std::string> seeds() {
  return {R"({"format":"oscar-checkpoints","format_version":1,"numbers_sha256":"ab","checkpoints":[{"fingerprint":)"
          R"("v2:sha256:00","name":"org/model-FP8","kl":0.0125},{"fingerprint":"v2:sha256:01","name":"","kl":0}]})"};
}

void read_input(std::string_view bytes) {
  for (const AddedCheckpoint& one :
       checkpoints_from_json(parse_json(bytes, "checkpoints.json"), "checkpoints.json", "ab")) {
    require(!one.fingerprint.empty(), "a checkpoint has a fingerprint");
    require(one.name.empty() || is_model_name(one.name), "a checkpoint has a plain name");
  }
}

}  // namespace oscar::fuzz
