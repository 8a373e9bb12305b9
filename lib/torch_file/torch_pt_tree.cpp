#include <set>
#include <utility>

#include "base/errors.h"
#include "torch_file/torch_pt_nodes.h"

namespace oscar::pt {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::uint64_t kMaxText = std::uint64_t{64} << 20, kMaxTensorBytes = std::uint64_t{4} << 30;

class TreeBuilder {
 public:
  TreeBuilder(const std::vector<Node>& nodes, const std::string& where) : nodes_(nodes), where_(where) {}

  PtValue value_of(Index i, int depth) {
    if (depth > kMaxDepth) refuse("its values are nested deeper than " + std::to_string(kMaxDepth) + " levels");
    if (++values_ > kMaxNodes) refuse("it holds more than " + std::to_string(kMaxNodes) + " values");
    const Node& node = nodes_[i];
    if (const auto* v = std::get_if<bool>(&node)) return *v;
    if (const auto* v = std::get_if<std::int64_t>(&node)) return *v;
    if (const auto* v = std::get_if<double>(&node)) return *v;
    if (const auto* v = std::get_if<PtTensor>(&node)) return *v;
    if (const auto* v = std::get_if<std::string>(&node)) {
      text_ += v->size();
      if (text_ > kMaxText) refuse("it holds more than " + format_bytes(kMaxText) + " of text");
      return *v;
    }
    if (const auto* v = std::get_if<List>(&node)) return list_of(v->items, depth);
    if (const auto* v = std::get_if<Tuple>(&node)) return list_of(v->items, depth);
    if (const auto* v = std::get_if<Dict>(&node)) return dict_of(v->items, depth);
    if (std::holds_alternative<std::monostate>(node)) return {};
    refuse("its pickle holds a class or a storage where a value is expected");
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw InputError(where_ + ": " + what); }

  PtValue list_of(const std::vector<Index>& items, int depth) {
    PtList list;
    for (const Index item : items) list.push_back(value_of(item, depth + 1));
    return list;
  }
  PtValue dict_of(const std::vector<Index>& items, int depth) {
    PtDict dict;
    std::set<std::int64_t> numbers;
    std::set<std::string> texts;
    for (std::size_t k = 0; k < items.size(); k += 2) {
      PtValue key = value_of(items[k], depth + 1);
      bool fresh = false;
      if (const auto* n = key.as<std::int64_t>()) {
        fresh = numbers.insert(*n).second;
      } else if (const auto* s = key.as<std::string>()) {
        fresh = texts.insert(*s).second;
      } else {
        refuse(std::string("a dictionary has ") + key.type_name() + " as a key, expected an integer or text");
      }
      if (!fresh) refuse("a dictionary has one key twice");
      dict.emplace_back(std::move(key), value_of(items[k + 1], depth + 1));
    }
    return dict;
  }

  const std::vector<Node>& nodes_;
  const std::string& where_;
  std::size_t values_ = 0;
  std::uint64_t text_ = 0;
};

}  // namespace

PtValue tree_of(const std::vector<Node>& nodes, Index root, const std::string& where) {
  return TreeBuilder(nodes, where).value_of(root, 0);
}

PtTensor tensor_over(const Storage& storage, std::int64_t offset, std::vector<std::int64_t> shape,
                     std::vector<std::int64_t> strides, const std::shared_ptr<const void>& owner,
                     const std::string& where) {
  const auto refuse = [&](const std::string& what) { throw InputError(where + ": " + what); };
  PtTensor t{storage.dtype, std::move(shape), std::move(strides), {}, owner};
  if (t.strides.size() != t.shape.size()) refuse("a tensor has strides of another length than its size");
  const std::uint64_t item = dtype_size(t.dtype), have = storage.bytes.size() / item;
  unsigned __int128 count = 1, last = 0;  // number of elements; index of the last one relative to the offset
  bool empty = false;
  for (std::size_t i = 0; i < t.shape.size(); ++i) {
    if (t.shape[i] < 0 || t.strides[i] < 0) refuse("a tensor has a negative number in its size or stride");
    empty = empty || t.shape[i] == 0;
  }
  for (std::size_t i = 0; i < t.shape.size() && !empty; ++i) {
    const auto extent = static_cast<std::uint64_t>(t.shape[i]);
    count *= extent;
    if (count * item > kMaxTensorBytes) {
      refuse("a tensor of shape " + t.shape_text() + " is larger than " + format_bytes(kMaxTensorBytes));
    }
    last += static_cast<unsigned __int128>(extent - 1) * static_cast<std::uint64_t>(t.strides[i]);
  }
  const bool outside = offset < 0 || static_cast<std::uint64_t>(offset) > have ||
                       (!empty && last + static_cast<std::uint64_t>(offset) >= have);
  if (outside) {
    refuse("a tensor of shape " + t.shape_text() + " at offset " + std::to_string(offset) +
           " reaches outside its storage of " + std::to_string(have) + " elements");
  }
  t.data = storage.bytes.subspan(static_cast<std::uint64_t>(offset) * item);
  return t;
}

}  // namespace oscar::pt
