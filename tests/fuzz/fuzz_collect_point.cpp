// The point at which a run of oscar-collect goes on: its sums are checked before they are used.
#include <ATen/ATen.h>

#include "collect/collect_work.h"
#include "collect/state_check.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/safetensors_bytes.h"
#include "statistics/layer_fields.h"

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
  for (const MomentField& field : kMomentFields) {
    if (field.gram) {
      good.add(field.name, "F64", std::vector<double>{2, 1, 1, 3}, "[1,2,2]");
    } else {
      good.add(field.name, "F64", std::vector<double>{1, 2}, "[1,2]");
    }
  }
  for (const MetricField& field : kFarPairFields) {
    if (field.gram) {
      good.add(field.name, "F64", std::vector<double>{2, 1, 1, 3}, "[1,2,2]");
    } else {
      good.add(field.name, "F64", std::vector<double>{1, 2});
    }
  }
  for (const RowField& field : kRowFields) {
    good.add(std::string("rows_") + field.name, "F32", std::vector<float>(field.query ? 8 : 4, 0.5F),
             field.query ? "[2,2,2]" : "[2,1,2]");
  }
  good.add("attention_residual", "F64", std::vector<double>{7, 2, 5, 1}, "[2,2]");
  good.add("attention_gain", "F64", std::vector<double>{7, 2, 5, 1}, "[2,2]");
  good.add("residual_energy", "F64", std::vector<double>{7, 3});
  good.add("embedding_energy", "F64", std::vector<double>{7, 3});
  Json state = {{"run", "0123"}, {"layer", 1}, {"step", 2}};
  for (const char* name : {"entering", "leaving", "keys_values"}) {
    state[name] = {{"rows", 3}, {"checksum", "0123456789abcdef"}};
  }
  return {good.str(Json{{"state", state.dump()}, {"file", "point.safetensors"}}.dump())};
}

void read_input(std::string_view bytes) {
  const SafetensorsFile file = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "point.safetensors");
  const ResumePoint point = read_point(file);
  require(point.layer >= 0 && point.step >= 0, "a point is not before the beginning");
  require(point.entering.rows >= 0 && point.keys_values.rows >= 0, "no file has fewer rows than none");
  check_energy_sum(point.embedding_energy, facts(), "point.safetensors", "embedding_energy");
  check_running_sums(point.sums, facts(), "point.safetensors");
  require(point.sums.q_gram.numel() == 4 && point.sums.rows_q.numel() == 8, "sums have the shapes of the run");
  require(point.sums.q_gram.isfinite().all().item<bool>(), "sums are finite");
}

}  // namespace oscar::fuzz
