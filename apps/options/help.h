// --help shows the options that most runs need, and --help-all shows all.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace oscar {

// Adds --help-all. Call it before subcommands are added.
void set_up_help(CLI::App& app);

// --help leaves these options of `app` out, and --help-all prints them under a heading of their own. `names` has spaces
// between them. Throws CLI::OptionNotFound for a name that `app` does not have.
void show_to_experts(CLI::App& app, const std::string& names);

}  // namespace oscar
