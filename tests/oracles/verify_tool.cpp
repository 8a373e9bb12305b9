// Helper of the Python oracles: writes the sample report, or scores logits that Python wrote.
//   verify_tool report DIRECTORY                      -> DIRECTORY/report.json, report.html, crowded.html, bytes.html
//   verify_tool score SEQUENCES ROWS VOCABULARY FILE  -> metrics as JSON on stdout; FILE holds, for each sequence,
//       baseline logits [R, V] f32, method logits [R, V] f32, targets [R] i32
#include <ATen/ATen.h>

#include <cstring>
#include <iostream>

#include "base/files.h"
#include "base/json.h"
#include "report/sample_report.h"
#include "verify/divergence.h"

namespace oscar {
namespace {

// Many methods close together, and needles at two lengths: what a page has to lay out at its worst.
VerifyReport crowded(VerifyReport report) {
  const char* names[] = {"fp8",
                         "naive3",
                         "turboquant2.5",
                         "q4_0",
                         "kivi2",
                         "oscar-layer",
                         "oscar-head",
                         "balanced",
                         "naive4",
                         "hadamard2",
                         "bundle-of-layer-rotations",
                         "kivi2-g128",
                         "waterfill"};
  double scale = 0.011, bits = 2.6;
  for (const char* name : names) {
    MethodReport m = sample_method(name, scale *= 1.12, false);
    m.bits_per_element = bits;
    bits += bits > 4.2 ? 0.01 : 0.4;
    report.methods.push_back(std::move(m));
  }
  for (MethodReport& m : report.methods) {
    TaskScore t;
    t.task = "niah", t.prompts = t.references = 8, t.n = 8, t.solved = 5, t.score = 0.625;
    for (const std::int64_t length : {1024, 2048}) {
      t.length = length;
      t.depths = {{0, 0.5, 4, 2}, {0.5, 1, 4, 3}};
      m.tasks.push_back(t);
    }
  }
  return report;
}

// The same methods brought to equal bytes, with windows and groups of their own.
VerifyReport equal_bytes(VerifyReport report) {
  report.target_bits = 4.4;
  std::int64_t recent = 100;
  for (MethodReport& m : report.methods) {
    if (!m.quantized) continue;
    m.comparison = "bytes";
    m.bits_per_element = 4.4;
    m.settings = "windows K 64/" + std::to_string(recent) + " in blocks of 128, V 64/" + std::to_string(recent + 60) +
                 ", groups of 32";
    recent += 7;
  }
  return report;
}

int write_report(const fs::path& directory) {
  const VerifyReport report = sample_report({0.1, 1.1, 0.1, 0.5});
  write_file_atomic(directory / "report.json", report_json(report));
  write_file_atomic(directory / "report.html", report_html(report));
  write_file_atomic(directory / "crowded.html", report_html(crowded(report)));
  write_file_atomic(directory / "bytes.html", report_html(equal_bytes(crowded(report))));
  return 0;
}

int score(std::int64_t sequences, std::int64_t rows, std::int64_t vocabulary, const fs::path& file) {
  const std::string bytes = read_file(file);
  const char* at = bytes.data();
  const auto logits = [&] {
    at::Tensor t = at::empty({rows, vocabulary});
    std::memcpy(t.mutable_data_ptr<float>(), at, t.nbytes());
    at += t.nbytes();
    return t;
  };
  std::vector<SequenceScores> scores(static_cast<std::size_t>(sequences));
  for (SequenceScores& s : scores) {
    const at::Tensor base = logits(), method = logits();
    std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
    std::memcpy(targets.data(), at, targets.size() * 4);
    at += targets.size() * 4;
    BaselineRows(base, targets, "file").score(method, "method", s);
  }
  VerifyReport report;
  report.methods.push_back({});
  report.methods[0].quality = summarize(scores, {500, 0.95, 5});
  std::cout << report_json(report);
  return 0;
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "report" && argc == 3) return oscar::write_report(argv[2]);
  if (mode == "score" && argc == 6) {
    return oscar::score(std::stoll(argv[2]), std::stoll(argv[3]), std::stoll(argv[4]), argv[5]);
  }
  return 2;
}
