#include "torch_file/torch_pt.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/formatted.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "torch_file/torch_pt_pickle.h"
#include "torch_file/torch_pt_zip.h"

namespace oscar {
namespace {

constexpr std::size_t kMaxPickle = std::size_t{16} << 20;
constexpr std::string_view kPickleName = "/data.pkl";

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The folder that contains all entries. It may differ from the file's name, because files can be renamed.
std::string find_root(const ZipReader& zip, const std::string& where) {
  std::string root;
  int found = 0;
  for (const std::string& name : zip.names()) {
    if (!name.ends_with(kPickleName)) continue;
    root = name.substr(0, name.size() - kPickleName.size());
    ++found;
  }
  if (found != 1) {
    throw InputError(where + ": is no torch.save file (the zip file has " + std::to_string(found) +
                     " entries named data.pkl, expected 1)");
  }
  return root;
}

PtValue parse(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner, const std::string& where) {
  ZipReader zip(bytes, where);
  const std::string root = find_root(zip, where);
  if (zip.has(root + "/byteorder") && as_text(zip.read(root + "/byteorder")) != "little") {
    throw InputError(where + ": was saved on a big-endian machine; load and save it again on a little-endian one");
  }
  const auto pickle = zip.read(root + kPickleName.data());
  if (pickle.size() > kMaxPickle) {
    throw InputError(where + ": its pickle has " + format_bytes(pickle.size()) + ", at most " +
                     format_bytes(kMaxPickle) + " is expected");
  }
  const auto storage = [&](const std::string& key) { return zip.read(root + "/data/" + key); };
  return unpickle(pickle, storage, owner, where);
}

// Torch expects 40 digits that identify a file. They are derived from the content, so equal files get equal ids.
std::string serialization_id(const Pickled& pickled) {
  Sha256 hash;
  hash.update(pickled.pickle);
  for (const auto& storage : pickled.storages) hash.update(storage.data(), storage.size());
  const std::string hex = hash.hex();
  std::string id;
  for (const std::size_t part : {0, 16}) id += formatted("%020llu", std::stoull(hex.substr(part, 16), nullptr, 16));
  return id;
}

void write_archive(const Pickled& pickled, const std::string& root, const ZipWriter::Sink& sink) {
  if (root.empty() || root.find('/') != std::string::npos || !is_utf8(root)) {
    throw InputError("a .pt file cannot be named " + quote_name(root));
  }
  ZipWriter zip(sink);
  zip.add(root + "/data.pkl", pickled.pickle);
  zip.add(root + "/.format_version", "1");
  zip.add(root + "/.storage_alignment", "64");
  zip.add(root + "/byteorder", "little");
  for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
    zip.add(root + "/data/" + std::to_string(i), pickled.storages[i]);
  }
  zip.add(root + "/version", "3\n");
  zip.add(root + "/.data/serialization_id", serialization_id(pickled));
  zip.finish();
}

}  // namespace

PtValue read_torch_pt(const fs::path& path) {
  const auto map = std::make_shared<const MappedFile>(path);
  return parse(map->bytes(), map, path.string());
}

PtValue parse_torch_pt(std::span<const std::byte> bytes, const std::string& where) { return parse(bytes, {}, where); }

void write_torch_pt(const fs::path& path, const PtValue& value) {
  const Pickled pickled = pickle(value);
  AtomicFile file(path);
  write_archive(pickled, path.stem().string(), [&](std::span<const std::byte> b) { file.write(b.data(), b.size()); });
  file.commit();
}

std::string dump_torch_pt(const PtValue& value, const std::string& root) {
  std::string out;
  write_archive(pickle(value), root, [&](std::span<const std::byte> b) { out += as_text(b); });
  return out;
}

}  // namespace oscar
