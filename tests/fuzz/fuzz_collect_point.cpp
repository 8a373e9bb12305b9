// The point at which a run of oscar-collect goes on: its sum is checked before it is used.
#include <ATen/ATen.h>

#include "collect/collect_work.h"
#include "collect/state_check.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/safetensors_bytes.h"

namespace oscar::fuzz {
namespace {

StateFacts facts() {
  StateFacts run;
  run.facts.query_heads = 2;
  run.facts.kv_heads = 1;
  run.facts.head_dim = 2;
  run.facts.hidden = 4;
  run.facts.tokens = 3;
  run.row_priority = {1, 2};
  run.row_position = {0, 1};
  run.far_pairs = true;
  return run;
}

}  // namespace

std::vector<std::string> seeds() {
  SafetensorsBytes good;
  good.add("embedding_energy", "F64", std::vector<double>{7, 3});
  const Json state = {{"run", "0123"}, {"layer", 1}, {"entering", {{"rows", 3}, {"checksum", "0123456789abcdef"}}}};
  return {good.str(Json{{"state", state.dump()}, {"file", "point.safetensors"}}.dump())};
}

void read_input(std::string_view bytes) {
  const SafetensorsFile file = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "point.safetensors");
  const ResumePoint point = read_point(file);
  require(point.layer >= 0, "a point is not before the beginning");
  require(point.entering.rows >= 0, "no file has fewer rows than none");
  check_energy_sum(point.embedding_energy, facts(), "point.safetensors", "embedding_energy");
  require(point.embedding_energy.isfinite().all().item<bool>(), "sums are finite");
}

}  // namespace oscar::fuzz
