#include <set>
#include <utility>

#include "base/errors.h"
#include "torch_file/torch_pt_nodes.h"

namespace oscar::pt {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::uint64_t kMaxText = std::uint64_t{64} << 20;

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

}  // namespace oscar::pt
