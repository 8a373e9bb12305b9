#include "export/bundle_copy.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/open_regular.h"
#include "bundle/bundle.h"
#include "bundle/bundle_files.h"
#include "bundle/calibration_hashes.h"

namespace oscar {
namespace {

// Writes exactly the bytes that were hashed, even if the file changes meanwhile. False, without writing, if the hash
// differs.
bool copy_hashed(const fs::path& from, const fs::path& to, const std::string& sha256) {
  std::uint64_t size = 0;
  const int fd = open_regular(from, &size);
  AtomicFile out(to);
  Sha256 hash;
  std::string buffer(std::size_t{1} << 20, '\0');
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const std::string why = std::strerror(errno);
      ::close(fd);
      throw InputError(from.string() + ": cannot be read (" + why + ")");
    }
    if (n == 0) break;
    hash.update(buffer.data(), static_cast<std::size_t>(n));
    out.write(buffer.data(), static_cast<std::size_t>(n));
  }
  ::close(fd);
  if (hash.hex() != sha256) return false;
  out.commit();
  return true;
}

}  // namespace

std::vector<std::string> copy_bundle(const fs::path& bundle, const fs::path& directory, const std::string& folder,
                                     const std::set<std::string>& left_out) {
  const std::string text = read_file(bundle / kManifestName);
  const Json manifest = parse_json(text, (bundle / kManifestName).string());
  const Json& listed = json_object(manifest, "files", (bundle / kManifestName).string());
  const std::string prefix = folder.empty() ? "" : folder + "/";
  if (!folder.empty()) make_directory(directory / folder);
  write_file_atomic(directory / folder / kManifestName, text);
  std::vector<std::string> names = {prefix + kManifestName};
  std::set<fs::path> known;  // names known to be plain
  for (const fs::path& path : bundle_files(bundle)) known.insert(path.lexically_relative(bundle));
  for (const auto& [file, entry] : listed.items()) {
    if (file == kCalibrationHashesName || left_out.contains(file)) continue;
    const fs::path path = bundle / file;
    std::error_code ec;
    if (!fs::exists(path, ec) && may_be_deleted(file)) continue;
    const bool here = known.contains(file) && fs::is_regular_file(path, ec);
    if (here && copy_hashed(path, directory / folder / file, json_string(entry, "sha256", path.string()))) {
      names.push_back(prefix + file);
    } else if (file != kCardName) {  // the card may contain text by anyone
      throw InputError(path.string() +
                       ": is not the file that the bundle's manifest lists; it was changed while it was "
                       "copied, so export the bundle again");
    }
  }
  std::error_code ec;
  if (const fs::path path = bundle / kCheckpointsName; fs::is_regular_file(path, ec)) {
    write_file_atomic(directory / folder / kCheckpointsName, read_file(path));  // load_bundle() has checked it
    names.push_back(prefix + kCheckpointsName);
  }
  return names;
}

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
