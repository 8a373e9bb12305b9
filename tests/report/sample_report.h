// A complete report with made-up but consistent numbers, for the tests of the writers.
#pragma once

#include "report/report.h"
#include "verify/gates.h"

namespace oscar {

inline SequenceScores sample_scores(double kl_scale) {
  SequenceScores s;
  s.first_position = 320;
  for (int t = 0; t < 63; ++t) {
    s.baseline_nll.push_back(2.0 + 0.01 * t);
    s.nll.push_back(2.0 + 0.01 * t + kl_scale * 0.1 * (t % 5 - 1));
    s.kl.push_back(kl_scale * (1 + t % 7));
    s.same_top.push_back(kl_scale == 0 || t % 4 != 0 ? 1 : 0);
  }
  return s;
}

inline MethodReport sample_method(const std::string& id, double kl_scale, bool evaluated) {
  MethodReport m;
  m.id = id;
  m.source = "made up & <checked>";
  m.path = "prefill";
  m.comparison = "common";
  m.settings = "windows 64/256";
  m.quantized = id != "bf16";
  m.evaluated = evaluated;
  m.code_bits = m.quantized ? 2.25 : 16;
  m.bits_per_element = m.quantized ? 13.75 * 320 / 384 + 2.25 : 16;
  m.allocated_bytes = m.quantized ? 300000 : 786432;
  const std::vector<SequenceScores> scores = {sample_scores(kl_scale), sample_scores(0.5 * kl_scale),
                                              sample_scores(kl_scale), sample_scores(0.5 * kl_scale)};
  m.quality = summarize(scores, {200, 0.95, 1});
  m.by_position = kl_by_position(scores, 320, 384, 4);
  if (m.quantized) {
    const HeadError one{-1, kl_scale, 0.9, 0.1 * kl_scale, 0.5 * kl_scale, 0.01, -0.02};
    m.layers = {{0, one, 0.4 * kl_scale, {{0, kl_scale, 0.9, 0.1 * kl_scale, 0.5 * kl_scale, 0.01, -0.02}}},
                {1, one, 0.4 * kl_scale, {}}};
  }
  const std::int64_t solved = kl_scale > 0.5 ? 1 : 8;
  m.tasks = {{"niah",
              384,
              10,
              8,
              solved,
              static_cast<double>(solved) / 8,
              wilson_interval(solved, 8),
              {{0, 0.5, 4, solved / 2}, {0.5, 1, 4, solved - solved / 2}},
              10}};
  return m;
}

inline VerifyReport sample_report(const GateLimits& limits) {
  const std::string hash(64, 'a');
  VerifyReport r;
  r.tool_version = "0.1.0";
  r.command = "oscar-verify --model 'a <model>' --bundle b --text t.txt";
  r.model = {"a <model>", "v2:sha256:" + hash, "Qwen3ForCausalLM", 2, 4, 2, 128, 8192, 8192};
  r.bundles = {{"oscar",
                "bundle",
                "b",
                "oscar",
                "layer",
                "minmax",
                "v2:sha256:" + hash,
                true,
                {{"rotations.safetensors", hash}},
                0.96,
                0.92,
                "bundle",
                {},
                "sglang-branch",
                {}}};
  r.text = {"t.txt", hash, 1000};
  r.scoring = {384, 4, 232, 320, 252, 252.0 / 1532.0};
  r.dtype = "float32";
  r.device = "cpu";
  r.bootstrap_samples = 200;
  r.layer_error_sequences = 1;
  r.methods = {sample_method("bf16", 0, false), sample_method("naive2", 1.5, false),
               sample_method("oscar", 0.01, true)};
  r.checks = {{"null_run", "the BF16 cache against itself", 0.0, 0.0, true},
              {"prefill_decode", "only one path ran", std::nullopt, std::nullopt, std::nullopt}};
  r.methods[1].ratios = r.methods[2].ratios = {{2048, 2.9}, {8192, 5.5}};
  r.bundles[0].key_widths = {{4, 4, 2, 1}, {0, 0, 0, 0}}, r.bundles[0].value_widths = {{2, 2, 1, 1}, {4, 2, 1, 0}};
  apply_gates(limits, r);
  return r;
}

}  // namespace oscar
