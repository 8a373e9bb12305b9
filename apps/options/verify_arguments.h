// The options of oscar-verify.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/options/shared_options.h"
#include "verify/verification.h"

namespace oscar {

inline constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 40;  // maximum value of an option

struct VerifyArguments {
  CommonOptions common;
  VerifyRequest request;
  std::vector<std::string> bundles, texts;
  std::string rotations, clip, form, windows, path = "prefill", report, html, markdown, junit, baseline, work_dir;
  bool check_only = false, add_checkpoint = false;
  std::string memory;                       // for `plan`
  std::vector<std::int64_t> plan_contexts;  // for `plan`
  double plan_bits = 0.0;                   // for `plan`; 0: as oscar-fit by default
};

void add_source_options(CLI::App& app, VerifyArguments& arguments);  // what is evaluated, and on which text
void add_measurement_options(CLI::App& app, VerifyArguments& arguments);
void add_report_options(CLI::App& app, VerifyArguments& arguments);  // outputs, state and gates

}  // namespace oscar
