// Common code of the four commands: flags, log and progress set-up, and the map from errors to exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/shell.h"
#include "pipeline/common/common_options.h"

namespace oscar {

// Adds -q/-v, --no-progress, --json, --version, --config FILE.toml and the exit-code footer; `example` starts the help
// text. Later subcommands do not inherit them: call fallthrough() on them, so that --json and similar may follow the
// subcommand's name.
void set_up_app(CLI::App& app, CommonOptions& options, const std::string& example);
void add_model_options(CLI::App& app, CommonOptions& options,
                       bool required);  // --model --revision --device --dtype --seed
void add_device_option(CLI::App& app, CommonOptions& options);
void add_output_options(CLI::App& app, CommonOptions& options, bool required);  // -o/--output --overwrite --dry-run

// Parses, sets up logging and the interrupt handler, runs `body`, and returns the exit code. CLI11's parse errors give
// 2, oscar::Error its own code, std::bad_alloc 4, and c10::Error and anything else 5 with its text. `body` returns the
// exit code of a normal end (0, or 1 for a failed gate).
int run_app(CLI::App& app, CommonOptions& options, int argc, char** argv, const std::function<int()>& body);

// UsageError "--name why" for the first of these options that was given, on the command line or in the file of
// --config. An option without effect is refused, not ignored.
void refuse_options(const CLI::App& app, const std::vector<std::string>& names, const std::string& why);
// The same for every option of `app`, except `used` and the flags common to all commands.
void refuse_other_options(const CLI::App& app, const std::vector<std::string>& used, const std::string& why);

// Validates an integer from `least` to `most`: decimal digits without a leading zero, which CLI11 would read as octal.
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);

// Validates a finite number from `least` to `most`.
CLI::Validator real_number(double least, double most);

std::string version_text();  // tool, git revision, compiler, LibTorch, CUDA: one block to paste

// The command that continues this run: the same arguments, with --resume.
std::string resume_command(int argc, char** argv);

}  // namespace oscar
