// What the four commands share: common flags, log and progress set-up, and the map from errors to exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

namespace oscar {

struct CommonOptions {
  std::string model, revision;
  std::string device = "auto";  // auto | cpu | cuda[:i]
  std::string dtype = "auto";   // auto | bfloat16 | float32
  std::uint64_t seed = 0;
  std::string output;
  bool overwrite = false, dry_run = false, json = false, no_progress = false, verbose = false, quiet = false;
};

// Adds -q/-v, --no-progress, --version, --config FILE.toml and the exit-code footer; `example` leads the help text.
void set_up_app(CLI::App& app, CommonOptions& options, const std::string& example);
void add_model_options(CLI::App& app, CommonOptions& options,
                       bool required);  // --model --revision --device --dtype --seed
void add_output_options(CLI::App& app, CommonOptions& options, bool required);  // -o/--output --overwrite

// Parses, sets up logging and the interrupt handler, runs `body`, and returns the exit code: CLI11's parse errors
// become 2, oscar::Error its own code, std::bad_alloc 4, c10::Error and anything else 5 with its text. `body` returns
// the exit code of a run that ended normally (0, or 1 for a failed gate).
int run_app(CLI::App& app, CommonOptions& options, int argc, char** argv, const std::function<int()>& body);

std::string version_text();  // tool, git revision, compiler, LibTorch, CUDA: one paste-ready block

}  // namespace oscar
