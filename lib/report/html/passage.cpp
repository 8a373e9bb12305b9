// Predictions with both caches along one passage of the text, side by side.
#include "report/html/parts.h"
#include "report/number_text.h"

namespace oscar::html {
namespace {

// The ends of lines as signs and as ends of lines, which page.css keeps.
std::string shown(std::string_view text) {
  std::string result;
  for (std::size_t at; (at = text.find_first_of("\n\t")) != std::string_view::npos; text.remove_prefix(at + 1)) {
    result += escape(text.substr(0, at)) + (text[at] == '\n' ? "&#x21b5;\n" : "\t");
  }
  return result + escape(text);
}

std::string column(const std::vector<PassageToken>& passage, const std::string& title, std::string PassageToken::*of) {
  std::string text = "<div><h3>" + title + "</h3><p>";
  for (const PassageToken& token : passage) {
    text += token.differs ? "<mark>" + shown(token.*of) + "</mark>" : shown(token.*of);
  }
  return text + "</p></div>\n";
}

}  // namespace

std::string passage_samples(const VerifyReport& report) {
  if (report.passage.empty()) return "";
  std::int64_t differing = 0;
  for (const PassageToken& token : report.passage) differing += token.differs ? 1 : 0;
  return "<p>The most probable token at each of " + grouped(std::ssize(report.passage)) +
         " positions of the text, given the text before it. Marked: where the two caches differ (" +
         grouped(differing) + ").</p>\n<div class=\"passage\">" +
         column(report.passage, "BF16 cache", &PassageToken::baseline) +
         column(report.passage, report.bundles.empty() ? "coded cache" : escape(report.bundles.front().row),
                &PassageToken::coded) +
         "</div>\n";
}

}  // namespace oscar::html
