// Reads the pickle in a torch.save file (protocol 2) as data, by interpreting the few opcodes that describe values. It
// imports nothing, calls nothing and refuses names outside the short list below.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "torch_file/torch_pt_value.h"

namespace oscar {

// The bytes of storage `key` (the text after "data/").
using StorageReader = std::function<std::span<const std::byte>(const std::string& key)>;

// Accepts None, booleans, integers, numbers, text, lists, tuples, dictionaries and tensors. InputError for other types,
// for tensors that reach outside their storage, and for input that needs too much memory for its size.
PtValue unpickle(std::span<const std::byte> pickle, const StorageReader& storages,
                 const std::shared_ptr<const void>& owner, const std::string& where);

// The pickle of `value` and its storages, in order. Tensors over the same bytes share one storage.
struct Pickled {
  std::string pickle;
  std::vector<std::vector<std::byte>> storages;
};
Pickled pickle(const PtValue& value);

// Torch's class name of a storage ("FloatStorage"). nullptr for types that this form of torch.save file cannot hold.
const char* storage_name(DType dtype);

}  // namespace oscar
