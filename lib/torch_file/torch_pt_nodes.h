// The pickle interpreter builds nodes that refer to each other by index, because a pickle may share values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "torch_file/torch_pt_value.h"

namespace oscar::pt {

constexpr std::size_t kMaxNodes = 2'000'000;  // per pickle, and per tree made from it

using Index = std::uint32_t;

// Classes and functions that a file may name. They describe data; none is ever called.
enum class Known { kRebuildTensor, kRebuildParameter, kOrderedDict, kSize };
struct Storage {
  DType dtype = DType::kF32;
  std::span<const std::byte> bytes;
};
struct Tuple {
  std::vector<Index> items;
};
struct List {
  std::vector<Index> items;
};
struct Dict {
  std::vector<Index> items;  // key, value, key, value, ...
};
using Node = std::variant<std::monostate, bool, std::int64_t, double, std::string, Tuple, List, Dict, PtTensor, Storage,
                          Known, DType>;

// Returns nodes[root] as a tree. Shared nodes are copied, so the number of values, the depth and the amount of text are
// limited. InputError for cycles and for sharing that would exceed the limits.
PtValue tree_of(const std::vector<Node>& nodes, Index root, const std::string& where);

// A view of `storage`. InputError unless every element lies within it.
PtTensor tensor_over(const Storage& storage, std::int64_t offset, std::vector<std::int64_t> shape,
                     std::vector<std::int64_t> strides, const std::shared_ptr<const void>& owner,
                     const std::string& where);

}  // namespace oscar::pt
