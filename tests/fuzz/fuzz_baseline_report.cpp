// The earlier report that oscar-verify compares with (--baseline).
#include "fuzz/fuzz_target.h"
#include "verify/baseline_report.h"

namespace oscar::fuzz {
namespace {

constexpr std::int64_t kContext = 2048, kSequences = 8, kFirst = 320;

}  // namespace

std::vector<std::string> seeds() {
  const std::string head =
      R"({"format_version":1,"model":{"fingerprint":"f"},"text":{"sha256":"t"},"context":2048,"options":{"dtype":"d"},)";
  const std::string rows =
      R"("methods":[{"id":"oscar","path":"decode","comparison":"common","kl":{"mean":0.1,"by_sequence":[0.05,0.15]},"ppl_ratio":1.01}]})";
  return {head + R"("scoring":{"first_position":320,"sequences":8,"tokens":13816},)" + rows,
          head + R"("scoring":{"first_position":400,"sequences":2,"tokens":3294},)" + rows};
}

void read_input(std::string_view bytes) {
  const BaselineReport earlier = BaselineReport::parse(bytes, "report.json");
  require(earlier.first_position() >= 0 && earlier.sequences() >= 0, "positions and sequences are not negative");
  ModelFacts model;
  model.fingerprint = "f";
  TextFacts text;
  text.sha256 = "t";
  ScoringFacts scoring;
  scoring.context = kContext, scoring.sequences = kSequences, scoring.first_position = kFirst;
  earlier.require_same(model, text, scoring, "d");
  require(earlier.sequences() <= kSequences && earlier.first_position() >= kFirst, "only tokens that this run scores");
  VerifyReport report;
  MethodReport row;
  row.id = "oscar", row.path = "decode", row.comparison = "common", row.quantized = row.evaluated = true;
  report.methods.push_back(row);
  earlier.compare(report, 0.5, {}, [&](std::size_t i) { return report.methods[i].quality; });
  for (const BaselineChange& c : report.changes) {
    require(c.kl_before >= 0.0 && c.ppl_ratio_before > 0.0, "figures are those of a run");
  }
  require(report.gates.size() >= 1, "the gate is decided");
}

}  // namespace oscar::fuzz
