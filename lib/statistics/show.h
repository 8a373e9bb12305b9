// The output of `oscar-collect show`: facts and spectra of a statistics file, as JSON or as text for a terminal.
#pragma once

#include <string>

#include "statistics/statistics.h"

namespace oscar {

Json show_json(const Statistics& statistics);  // schemas/statistics.schema.json
std::string show_text(const Statistics& statistics, bool utf8);

// True if the locale of the environment (LC_ALL, LC_CTYPE, LANG) uses UTF-8.
bool locale_is_utf8();

}  // namespace oscar
