// A record of per-token scores in the work directory of oscar-verify.
#include <cmath>

#include "fuzz/fuzz_target.h"
#include "fuzz/safetensors_bytes.h"
#include "verify/score_store.h"

namespace oscar::fuzz {
namespace {

const ScoreLayout kLayout{320, {2, 3}, 2};

}  // namespace

std::vector<std::string> seeds() {
  SafetensorsBytes good;
  for (const char* row : {"row0", "row1"}) {
    good.add(row, "F64", std::vector<double>{.5, 1, .25, 2, 0, .125, 1, 0, 1, 2, 3, 1.5, 2, 3, 0, .5, 1, 0, 1, 1});
  }
  return {good.str(R"({"run":"0123"})")};
}

void read_input(std::string_view bytes) {
  const SafetensorsFile file = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "group-00000.safetensors");
  const WorkRecord record = work_record(file);
  for (std::size_t row = 0; row < 2; ++row) {
    const auto tokens = kLayout.of_group(0);
    const std::vector<SequenceScores> scores =
        read_scores(record, file.path().string(), row, kLayout.first_position, tokens);
    require(scores.size() == tokens.size(), "there is one entry for each sequence");
    for (std::size_t s = 0; s < scores.size(); ++s) {
      const auto n = static_cast<std::size_t>(tokens[s]);
      require(scores[s].first_position == kLayout.first_position, "positions are the run's");
      require(scores[s].nll.size() == n && scores[s].kl.size() == n && scores[s].same_top.size() == n,
              "there is one score for each token");
      for (const double kl : scores[s].kl) require(std::isfinite(kl) && kl >= 0.0, "divergences are no less than 0");
    }
  }
}

}  // namespace oscar::fuzz
