#include "export/checksums.h"

#include <sstream>

#include "base/hash.h"

namespace oscar {
namespace {

// Each line: 64 digits, two spaces, the name.
std::set<std::string> listed_files(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code ec;
  if (!fs::is_regular_file(directory / kChecksumsName, ec)) return names;
  std::istringstream lines(read_file(directory / kChecksumsName, 1 << 20));
  constexpr std::size_t kName = 66;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > kName) names.insert(line.substr(kName));
  }
  return names;
}

}  // namespace

DirectoryKind checksummed_directory() { return {kChecksumsName, listed_files}; }

std::vector<std::string> write_checksums(const fs::path& directory, std::vector<std::string> names) {
  std::string lines;
  for (const std::string& name : names) lines += sha256_file(directory / name) + "  " + name + "\n";
  write_file_atomic(directory / kChecksumsName, lines);
  names.emplace_back(kChecksumsName);
  return names;
}

}  // namespace oscar
