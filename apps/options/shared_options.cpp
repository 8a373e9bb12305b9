#include "apps/options/shared_options.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <sstream>
#include <string_view>

#include "apps/options/config_check.h"
#include "apps/options/help.h"
#include "apps/process_setup.h"
#include "base/edit_distance.h"
#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/formatted.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"

namespace oscar {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 a quality gate failed; 2 wrong usage; 3 bad input or format; 4 environment (no GPU, out of\n"
    "memory, disk full); 5 numerical failure; 130 interrupted (SIGINT, SIGTERM, SIGHUP): the message says how to go "
    "on.\n"
    "Results go to stdout, progress and messages to stderr; NO_COLOR is honored. org/name is looked up in\n"
    "$HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub, whichever is set first.";

// auto, cpu, cuda or cuda:<index>.
std::string check_device(const std::string& value) {
  if (value == "auto" || value == "cpu" || value == "cuda") return {};
  if (value.rfind("cuda:", 0) == 0) {
    const std::string_view index = std::string_view(value).substr(5);
    if (!index.empty() && index.size() <= 3 && index.find_first_not_of("0123456789") == std::string_view::npos) {
      return {};
    }
  }
  return "'" + value + "' is not a device; expected auto, cpu, cuda or cuda:<index>";
}

constexpr std::uint64_t kMostConfig = std::uint64_t{16} << 20;

// Reading a pipe could block.
std::string check_config_file(const std::string& path) {
  std::error_code ec;
  if (!fs::exists(path, ec)) return {};
  if (!fs::is_regular_file(path, ec)) return path + " is not a regular file";
  try {
    const std::string fault = config_fault(read_file(path, kMostConfig));
    return fault.empty() ? fault : path + ", " + fault;
  } catch (const Error& e) {
    return e.what();
  }
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// LibTorch reports a failed CPU allocation as a general error; only its text identifies it.
bool is_out_of_memory(std::string_view text) {
  return text.find("can't allocate memory") != std::string_view::npos ||
         text.find("not enough memory") != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos;
}

int fail(ExitCode code, const std::string& message) {
  log_error(message);
  return static_cast<int>(code);
}

constexpr const char* kOutOfMemoryHint = "out of memory; use a shorter --seq-len or --stream-layers, or free memory (";

// Returns `code`, unless printed output did not reach its destination. A reader that stops (`| head`) ends the process
// by SIGPIPE, like any program. If a parent had SIGPIPE ignored, the exit code is the same.
int check_output(int code) {
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0) return 128 + SIGPIPE;  // a pipe without a reader
  return fail(ExitCode::kEnvironment, "the result cannot be written to standard output (is the disk full?)");
}

int run_body(const std::function<int()>& body) {
  try {
    return check_output(body());
  } catch (const InterruptedError& e) {
    log_warning(e.what());
    return static_cast<int>(e.code());
  } catch (const Error& e) {
    return fail(e.code(), e.what());
  } catch (const std::bad_alloc& e) {
    return fail(ExitCode::kEnvironment, std::string(kOutOfMemoryHint) + e.what() + ")");
  } catch (const c10::OutOfMemoryError& e) {
    return fail(ExitCode::kEnvironment, kOutOfMemoryHint + first_line(e.what_without_backtrace()) + ")");
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    if (is_out_of_memory(text)) return fail(ExitCode::kEnvironment, kOutOfMemoryHint + first_line(text) + ")");
    return fail(ExitCode::kNumerical, "LibTorch failed: " + text);
  } catch (const fs::filesystem_error& e) {
    return fail(ExitCode::kEnvironment, e.what());
  } catch (const std::exception& e) {
    return fail(ExitCode::kNumerical, std::string("unexpected failure: ") + e.what());
  }
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* inner : app.get_subcommands()) {
    for (std::string& name : option_names(*inner)) names.push_back(std::move(name));
  }
  return names;
}

// CLI11's messages, with the name that was probably meant. It reports an unknown key of a file as its INI reader does.
std::string parse_error_text(const CLI::App& app, const CLI::ParseError& e) {
  if (dynamic_cast<const CLI::ExtrasError*>(&e) != nullptr || dynamic_cast<const CLI::RequiredError*>(&e) != nullptr) {
    const std::vector<std::string> rest = app.remaining(true);
    const auto option =
        std::find_if(rest.begin(), rest.end(), [](const std::string& word) { return word.starts_with("--"); });
    if (option != rest.end()) {
      const std::string name = option->substr(0, option->find('='));
      return quote_name(name) + " is not an option" + did_you_mean(name, option_names(app));
    }
  }
  const std::string words = e.what();
  if (const auto list = words.find(" not in {"); list != std::string::npos && words.ends_with("}")) {
    std::vector<std::string> choices;
    std::istringstream members(words.substr(list + 9, words.size() - list - 10));
    for (std::string one; std::getline(members, one, ',');) choices.push_back(one);
    return words + did_you_mean(words.substr(0, list).substr(words.substr(0, list).rfind(' ') + 1), choices);
  }
  if (dynamic_cast<const CLI::ConfigError*>(&e) != nullptr) {
    const std::string text = e.what(), known = "INI was not able to parse ";
    if (text.rfind(known, 0) != 0) return "--config: " + text;
    const std::string key = text.substr(known.size());
    return "--config: the file sets '" + key + "', which is not an option" +
           did_you_mean("--" + key, option_names(app));
  }
  if (dynamic_cast<const CLI::FileError*>(&e) != nullptr) return std::string("--config: ") + e.what();
  return e.what();
}

int run_parsed(CLI::App& app, CommonOptions& options, int argc, char** argv, const std::function<int()>& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      app.exit(e);
      return check_output(0);
    }
    return fail(ExitCode::kUsage, first_line(parse_error_text(app, e)) + " (" + app.get_name() + " --help explains)");
  }
  if (app.get_config_ptr()->count() > 0) options.config = app.get_config_ptr()->as<std::string>();
  set_log_level(options.quiet ? LogLevel::kQuiet : options.verbose ? LogLevel::kVerbose : LogLevel::kNormal);
  set_progress_enabled(!options.no_progress && !options.quiet);
  install_interrupt_handler();
  return run_body(body);
}

}  // namespace

void set_up_app(CLI::App& app, CommonOptions& options, const std::string& example) {
  std::string indented = "  ";
  for (const char c : example) {
    indented += c;
    if (c == '\n') indented += "  ";
  }
  app.description("Example:\n" + indented + "\n\n" + app.get_description());
  app.footer(kFooter);
  set_up_help(app);
  app.set_version_flag("--version", version_text);
  CLI::Option* quiet = app.add_flag("-q,--quiet", options.quiet, "Print warnings and errors only");
  app.add_flag("-v,--verbose", options.verbose, "Print details too")->excludes(quiet);
  app.add_flag("--no-progress", options.no_progress, "No progress bar");
  app.add_flag("--json", options.json, "Print the result as JSON on stdout");
  app.set_config("--config", "", "Read options from a TOML file: `seq-len = 2048`, `prompts = [\"a.jsonl\"]`")
      ->type_name("FILE.toml")
      ->check(CLI::Validator(check_config_file, ""));
  show_to_experts(app, "--quiet --verbose --no-progress --config");
  app.allow_config_extras(CLI::config_extras_mode::error);
}

void add_device_option(CLI::App& app, CommonOptions& options) {
  app.add_option("--device", options.device, "Where to compute")
      ->capture_default_str()
      ->check(CLI::Validator(check_device, "auto|cpu|cuda[:i]"));
}

void add_model_options(CLI::App& app, CommonOptions& options, bool required) {
  app.add_option("--model", options.model, "Model directory, or org/name in the Hugging Face cache")
      ->required(required)
      ->type_name("DIR|org/name");
  app.add_option("--revision", options.revision, "Branch, tag or commit in the Hugging Face cache");
  add_device_option(app, options);
  app.add_option("--dtype", options.dtype, "Type of weights and activations")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}));
  app.add_option("--seed", options.seed, "Seed of every random choice")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_number(0, UINT64_MAX));
}

void add_output_options(CLI::App& app, CommonOptions& options, bool required) {
  app.add_option("-o,--output", options.output, "Where to write the result")->required(required)->type_name("PATH");
  app.add_flag("--overwrite", options.overwrite, "Replace an output that exists");
  app.add_flag("--dry-run", options.dry_run, "Print the plan and write nothing");
}

int run_app(CLI::App& app, CommonOptions& options, int argc, char** argv, const std::function<int()>& body) {
  open_standard_descriptors();
  return run_parsed(app, options, argc, argv, body);
}

CLI::Validator real_number(double least, double most) {
  const auto check = [least, most](std::string& text) -> std::string {
    double value = 0.0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = end.ec == std::errc() && end.ptr == text.data() + text.size() && std::isfinite(value);
    if (number && value >= least && value <= most) return {};
    return "'" + text + "' is not a number from " + formatted("%.6g to %.6g", least, most);
  };
  return CLI::Validator(check, "");
}

void refuse_options(const CLI::App& app, const std::vector<std::string>& names, const std::string& why) {
  for (const std::string& name : names) {
    if (app.get_option(name)->count() > 0) throw UsageError(name + " " + why);
  }
}

void refuse_other_options(const CLI::App& app, const std::vector<std::string>& used, const std::string& why) {
  constexpr const char* kShared[] = {"--help",    "--help-all",    "--version", "--quiet",
                                     "--verbose", "--no-progress", "--json",    "--config"};
  const auto named = [](const auto& list, const CLI::Option* option) {
    return std::any_of(std::begin(list), std::end(list), [&](const auto& name) { return option->check_name(name); });
  };
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || named(kShared, option) || named(used, option)) continue;
    throw UsageError(option->get_name() + " " + why);
  }
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const auto check = [least, most](std::string& text) -> std::string {
    const std::string expected = "'" + text + "' is not a whole number from " + std::to_string(least) +
                                 (most == UINT64_MAX ? std::string() : " to " + std::to_string(most));
    if (text.empty() || text.size() > 20 || text.find_first_not_of("0123456789") != std::string::npos) return expected;
    if (text.size() > 1 && text[0] == '0') return expected + " (write it without the leading 0)";
    errno = 0;
    const std::uint64_t value = std::strtoull(text.c_str(), nullptr, 10);
    return errno != 0 || value < least || value > most ? expected : std::string();
  };
  return CLI::Validator(check, "");
}

std::string resume_command(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  if (std::find(arguments.begin(), arguments.end(), "--resume") == arguments.end()) arguments.push_back("--resume");
  return shell_command(arguments);
}

}  // namespace oscar
