#include "bundle/checkpoints.h"

#include <algorithm>

#include "base/errors.h"
#include "bundle/bundle.h"
#include "checkpoint/model_name.h"

namespace oscar {
namespace {

constexpr const char* kAddedFormat = "oscar-checkpoints";
constexpr std::int64_t kAddedVersion = 1;
constexpr std::uint64_t kMostAddedBytes = std::uint64_t{1} << 20;

}  // namespace

std::vector<AddedCheckpoint> load_checkpoints(const fs::path& bundle, const std::string& numbers_sha256) {
  const fs::path path = bundle / kCheckpointsName;
  if (!path_exists(path)) return {};
  return checkpoints_from_json(read_json(path, kMostAddedBytes), path.string(), numbers_sha256);
}

std::vector<AddedCheckpoint> checkpoints_from_json(const Json& json, const std::string& where,
                                                   const std::string& numbers_sha256) {
  if (json_string(json, "format", where) != kAddedFormat || json_int(json, "format_version", where) != kAddedVersion) {
    throw InputError(where + ": is not '" + kAddedFormat + "' of format_version " + std::to_string(kAddedVersion) +
                     ", which this program reads; update the toolchain, or remove the file");
  }
  if (const std::string of = json_string(json, "numbers_sha256", where); of.empty() || of != numbers_sha256) {
    throw InputError(where + ": belongs to another bundle (its numbers_sha256 is not the manifest's); remove it, and " +
                     "add the checkpoints with oscar-verify --add-checkpoint");
  }
  std::vector<AddedCheckpoint> found;
  for (const Json& entry : json_array(json, "checkpoints", where)) {
    found.push_back({json_string(entry, "fingerprint", where),
                     read_model_name(json_string(entry, "name", where), where), json_number(entry, "kl", where)});
    if (found.back().fingerprint.empty()) throw InputError(where + ": a 'fingerprint' is empty, expected one");
  }
  return found;
}

void add_checkpoint(const fs::path& bundle, AddedCheckpoint added) {
  const std::string where = (bundle / kManifestName).string();
  const std::string numbers = json_string(read_json(bundle / kManifestName), "numbers_sha256", where, "");
  if (numbers.empty()) throw InputError(where + ": has no numbers_sha256; fit the bundle again to add a checkpoint");
  std::vector<AddedCheckpoint> all = load_checkpoints(bundle, numbers);
  std::erase_if(all, [&](const AddedCheckpoint& c) { return c.fingerprint == added.fingerprint; });
  all.push_back(std::move(added));
  Json list = Json::array();
  for (const AddedCheckpoint& c : all) list.push_back({{"fingerprint", c.fingerprint}, {"name", c.name}, {"kl", c.kl}});
  write_file_atomic(bundle / kCheckpointsName, dump_json(Json{{"format", kAddedFormat},
                                                              {"format_version", kAddedVersion},
                                                              {"numbers_sha256", numbers},
                                                              {"checkpoints", std::move(list)}}));
}

bool serves_checkpoint(const Bundle& bundle, const std::string& fingerprint) {
  return bundle.model_fingerprint == fingerprint ||
         std::any_of(bundle.checkpoints.begin(), bundle.checkpoints.end(),
                     [&](const AddedCheckpoint& c) { return c.fingerprint == fingerprint; });
}

}  // namespace oscar
