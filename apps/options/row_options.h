// Options that control how JSON rows become tokens, shared by the commands that read such files.
#pragma once

#include "apps/options/shared_options.h"
#include "text/prompts.h"

namespace oscar {

void add_row_options(CLI::App& app, RowSettings& rows);  // --column, --render, --date

}  // namespace oscar
