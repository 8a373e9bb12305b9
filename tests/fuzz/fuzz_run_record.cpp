// run.json of a work directory.
#include "base/errors.h"
#include "base/run_directory.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {
namespace {

const Json kWanted = {
    {"tool_version", "0.1.0"},
    {"model", "sha256:01"},
    {"prompts", "02"},
    {"options", {{"tokens", 200}, {"far_pairs", {{"sink", 64}, {"recent", 256}}}, {"dtype", "float32"}}},
    {"threads", 2}};

}  // namespace

std::vector<std::string> seeds() {
  Json other = kWanted;
  other["options"]["tokens"] = 100;
  return {dump_json(kWanted), dump_json(other)};
}

void read_input(std::string_view bytes) {
  const Json run = parse_run_record(bytes, "run.json");
  require(run["threads"].is_number(), "the number of threads is a number");
  try {
    require_same_run("work", run, kWanted, {{"model", "is of another model"}, {"prompts", "has other prompts"}});
    require(run["options"]["tokens"] == 200, "an accepted run has the options that were asked for");
  } catch (const UsageError& e) {
    const std::string_view message = e.what();
    require(message.size() < 2000 && message.find('\n') == std::string_view::npos, "a refusal is one line");
  }
}

}  // namespace oscar::fuzz
