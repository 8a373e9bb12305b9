#include "apps/options/help.h"

#include <memory>
#include <sstream>
#include <utility>
#include <vector>

namespace oscar {
namespace {

constexpr const char* kExperts = "For experts";

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    all_ = mode != CLI::AppFormatMode::Normal;
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t gap; (gap = text.find("\n\n\n")) != std::string::npos;) text.erase(gap, 1);
    return text;
  }

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    if (group == kExperts && !all_) return {};
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
  }

  // Lists only the names of subcommands, because each has its own help.
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    return CLI::Formatter::make_subcommands(app, CLI::AppFormatMode::Normal);
  }

 private:
  mutable bool all_ = false;  // mutable because CLI11 calls the formatter as const
};

}  // namespace

void set_up_help(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_all_flag("--help-all", "Print this message with the options for experts, and exit");
}

void show_to_experts(CLI::App& app, const std::string& names) {
  std::istringstream words(names);
  for (std::string name; words >> name;) app.get_option(name)->group(kExperts);
}

}  // namespace oscar
