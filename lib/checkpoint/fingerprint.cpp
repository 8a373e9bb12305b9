// Checkpoint::fingerprint: hashes the canonical config.json, then every tensor in name order. One file and any sharding
// of the same tensors give the same fingerprint.
#include <map>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"

namespace oscar {
namespace {

constexpr std::size_t kSample = 4096;

void add_tensor(Sha256& hash, const std::string& name, const TensorView& tensor) {
  // The length before the name prevents confusion between a name and another name plus its shape.
  hash.update(std::to_string(name.size()) + ":" + name + " " + tensor.type_text() + " " + tensor.shape_text() + "\n");
  const std::span<const std::byte> data = tensor.data;
  if (data.size() <= 3 * kSample) {
    hash.update(data.data(), data.size());
    return;
  }
  for (const std::size_t start : {std::size_t{0}, (data.size() - kSample) / 2, data.size() - kSample}) {
    hash.update(data.data() + start, kSample);
  }
}

}  // namespace

std::string Checkpoint::fingerprint() const {
  Sha256 hash;
  hash.update("oscar-fingerprint-2\n" + canonical_config_ + "\n");
  std::map<std::string, const TensorView*> stored;  // by name in the file
  for (const auto& [name, tensor] : index_) stored.emplace(stored_name(name), tensor);
  for (const auto& [name, tensor] : stored) add_tensor(hash, name, *tensor);
  return "v2:sha256:" + hash.hex();
}

}  // namespace oscar
