// The pickle inside a torch.save file, protocol 2, as data: an interpreter of the few opcodes that describe values.
// Nothing is imported and nothing is called; a name outside the short list below is refused.
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

// InputError for anything but None, booleans, integers, numbers, text, lists, tuples, dictionaries and tensors, for
// tensors that reach outside their storage, and for input that would need more memory than its size can justify.
PtValue unpickle(std::span<const std::byte> pickle, const StorageReader& storages,
                 const std::shared_ptr<const void>& owner, const std::string& where);

// The pickle of `value` and the storages it refers to, in order: tensors over the same bytes share one.
struct Pickled {
  std::string pickle;
  std::vector<std::vector<std::byte>> storages;
};
Pickled pickle(const PtValue& value);

// Torch's class name of a storage ("FloatStorage"); nullptr for a type torch.save files cannot hold in this form.
const char* storage_name(DType dtype);

}  // namespace oscar
