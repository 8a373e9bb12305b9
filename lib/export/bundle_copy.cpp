#include "export/bundle_copy.h"

#include "base/hash.h"
#include "base/json.h"
#include "bundle/bundle.h"
#include "bundle/bundle_files.h"

namespace oscar {

std::vector<std::string> copy_bundle(const fs::path& bundle, const fs::path& directory) {
  const Json manifest = read_json(bundle / kManifestName);
  std::vector<std::string> names;
  for (const fs::path& path : bundle_files(bundle)) {
    const std::string file = path.lexically_relative(bundle).generic_string();
    std::error_code ec;
    if (!fs::is_regular_file(path, ec)) continue;
    if (file != kManifestName && sha256_file(path) != manifest["files"][file]["sha256"]) continue;
    const std::string name = std::string(kBundleFolder) + "/" + file;
    fs::create_directories((directory / name).parent_path());
    fs::copy_file(bundle / file, directory / name);
    names.push_back(name);
  }
  return names;
}

}  // namespace oscar
