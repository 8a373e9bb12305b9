// Options of collecting statistics, shared by oscar-collect and `oscar-fit --model`.
#pragma once

#include <string>

#include "apps/options/shared_options.h"
#include "pipeline/collect/collect_request.h"

namespace oscar {

// Options of collecting with the same description in both commands, and --prompts with the description `text`.
void add_prompts_option(CLI::App& app, CollectArguments& arguments, const std::string& text);
void add_prompt_options(CLI::App& app, CollectArguments& arguments);

}  // namespace oscar
