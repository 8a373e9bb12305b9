// Untrusted text in Markdown, for model cards and summaries, and in HTML.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// One line of plain text. Escapes characters that have a meaning in CommonMark or its tables; escape_text() handles
// controls. An underscore inside a word stays, because it has no meaning there.
std::string markdown_text(std::string_view text);

// A code span, also safe in a table row.
std::string markdown_code(std::string_view text);

// & < > " ' as entities of HTML and XML. Controls stay: the report uses html::escape() (report/html/parts.h).
std::string with_entities(std::string_view text);

}  // namespace oscar
