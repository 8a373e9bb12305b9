// torch.save files (.pt, zip format) without Torch. An interpreter that runs no code reads them as plain values.
// Written files can be read by torch.load(weights_only=True).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/files.h"
#include "torch_file/torch_pt_value.h"

namespace oscar {

// InputError for anything except a sound file of tensors and plain values. Tensors are views of the mapped file and
// keep it open.
PtValue read_torch_pt(const fs::path& path);
// The same for bytes in memory, which must outlive the result. `where` names them in messages.
PtValue parse_torch_pt(std::span<const std::byte> bytes, const std::string& where);

// Writes atomically. The bytes depend only on the value and the stem of the file name, because torch names the folder
// inside the archive after it.
void write_torch_pt(const fs::path& path, const PtValue& value);
// The same in memory. `root` is the name of the folder inside the archive.
std::string dump_torch_pt(const PtValue& value, const std::string& root);

}  // namespace oscar
