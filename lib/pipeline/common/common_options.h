// Options that all commands share, as values.
#pragma once

#include <cstdint>
#include <string>

namespace oscar {

struct CommonOptions {
  std::string model, revision;
  std::string device = "auto";  // auto | cpu | cuda[:i]; see device_choice.h
  std::string dtype = "auto";   // auto | bfloat16 | float32
  std::uint64_t seed = 0;
  std::string output;
  std::string config;  // the file of --config, checked like any other input
  bool overwrite = false, dry_run = false, json = false, no_progress = false, verbose = false, quiet = false;
};

std::string tool_version();  // "0.1.0", as recorded in files

}  // namespace oscar
