#include "apps/options/row_options.h"

#include <string>

namespace oscar {

void add_row_options(CLI::App& app, RowSettings& rows) {
  app.add_option("--column", rows.options.column,
                 "The key of each row to read (default: the first of those that docs/prompts.md lists)")
      ->type_name("NAME");
  app.add_option_function<std::string>(
         "--render",
         [&rows](const std::string& name) {
           rows.rendering = name == "server" ? Rendering::kServer : Rendering::kTransformers;
         },
         "Messages as servers change them before the chat template (arguments of tools decoded, parts of texts "
         "joined), or as transformers takes them")
      ->check(CLI::IsMember({"server", "transformers"}))
      ->default_str("server");
  app.add_option("--date", rows.date, "Date given to chat templates that use one (default: today)")
      ->type_name("YYYY-MM-DD");
}

}  // namespace oscar
