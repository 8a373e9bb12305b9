// --help shows the options that most runs need; --help-all shows all.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace oscar {

// Adds --help-all. Call it before adding subcommands.
void set_up_help(CLI::App& app);

// Hides these options of `app` from --help; --help-all prints them under a separate heading. `names` are separated by
// spaces. CLI::OptionNotFound for a name that `app` does not have.
void show_to_experts(CLI::App& app, const std::string& names);

}  // namespace oscar
