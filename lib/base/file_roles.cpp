#include "base/file_roles.h"

#include <sys/stat.h>

#include <optional>

#include "base/errors.h"

namespace oscar {
namespace {

// Device and inode of the deepest existing part, and the rest of the path. Equal for two spellings of one place, even
// if it does not exist yet.
struct Place {
  dev_t device = 0;
  ino_t inode = 0;
  fs::path rest;
  bool operator==(const Place&) const = default;
};

std::optional<Place> place_of(const fs::path& path) {
  std::error_code ec;
  fs::path at = fs::weakly_canonical(fs::absolute(path, ec), ec);
  if (ec) at = fs::absolute(path, ec).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();  // "out/"
  Place place;
  struct stat st {};
  while (::stat(at.c_str(), &st) != 0) {
    place.rest = place.rest.empty() ? at.filename() : at.filename() / place.rest;
    if (at == at.parent_path()) return std::nullopt;
    at = at.parent_path();
  }
  place.device = st.st_dev;
  place.inode = st.st_ino;
  return place;
}

// Whether `path` is in the directory at `place`, or is that directory.
bool is_below(const fs::path& path, const Place& place) {
  std::error_code ec;
  for (fs::path at = fs::weakly_canonical(path, ec); !ec; at = at.parent_path()) {
    if (place_of(at) == place) return true;
    if (at == at.parent_path()) return false;
  }
  return false;
}

}  // namespace

void FileRoles::input(const fs::path& path) {
  if (!path.empty()) inputs_.push_back(path);
}

void FileRoles::inputs(const std::vector<fs::path>& paths) {
  for (const fs::path& path : paths) input(path);
}

void FileRoles::output(const fs::path& path, const std::string& option) {
  if (!path.empty()) outputs_.push_back({path, option, false});
}

void FileRoles::output_directory(const fs::path& path, const std::string& option) {
  if (!path.empty()) outputs_.push_back({path, option, true});
}

void FileRoles::check() const {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Output& output = outputs_[i];
    const std::optional<Place> place = place_of(output.path);
    if (!place) continue;
    for (const fs::path& input : inputs_) {
      std::error_code ec;
      if (!fs::exists(input, ec)) continue;
      if (output.directory ? is_below(input, *place) : place_of(input) == place) {
        throw UsageError(output.option + " " + output.path.string() + (output.directory ? " holds " : " is ") +
                         input.string() + ", which this command reads; choose another output");
      }
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (place_of(outputs_[j].path) != place) continue;
      throw UsageError(outputs_[j].option + " and " + output.option + " name the same file, " + output.path.string());
    }
  }
}

}  // namespace oscar
