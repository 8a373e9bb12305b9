// Foreign text inside Markdown: model cards and summaries. HTML has html::escape() (report/html/parts.h).
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// One line of plain text: characters that CommonMark or a table of it would act on are escaped, controls shown by
// escape_text(). An underscore inside a word means nothing and stays.
std::string markdown_text(std::string_view text);

// A code span, also inside a table row.
std::string markdown_code(std::string_view text);

}  // namespace oscar
