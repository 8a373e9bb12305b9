#include "bundle/bundle_files.h"

#include "bundle/manifest.h"
#include "checkpoint/model_location.h"

namespace oscar {

fs::path locate_bundle(const std::string& text) {
  const std::string scheme = "hf:";
  if (!text.starts_with(scheme)) return text;
  const std::string rest = text.substr(scheme.size());
  const std::size_t at = rest.find('@');
  return locate_repository(rest.substr(0, at), at == std::string::npos ? "" : rest.substr(at + 1), kManifestName)
      .directory;
}

}  // namespace oscar
