#include <unordered_map>
#include <utility>

#include "base/foreign_text.h"
#include "torch_file/torch_pt_bytes.h"
#include "torch_file/torch_pt_nodes.h"
#include "torch_file/torch_pt_pickle.h"

namespace oscar {
namespace {

using namespace pt;

constexpr std::pair<const char*, DType> kStorages[] = {
    {"FloatStorage", DType::kF32},  {"HalfStorage", DType::kF16}, {"BFloat16Storage", DType::kBF16},
    {"DoubleStorage", DType::kF64}, {"LongStorage", DType::kI64}, {"IntStorage", DType::kI32},
    {"ShortStorage", DType::kI16},  {"CharStorage", DType::kI8},  {"ByteStorage", DType::kU8},
    {"BoolStorage", DType::kBool}};

constexpr std::size_t kMaxRank = 32;

class Unpickler {
 public:
  Unpickler(std::span<const std::byte> in, const StorageReader& storages, const std::shared_ptr<const void>& owner,
            const std::string& where)
      : in_(in, where), storages_(storages), owner_(owner) {}

  PtValue run() {
    while (true) {
      const auto op = in_.number<unsigned char>();
      if (op == '.') break;
      step(op);
    }
    const Index top = pop();
    if (!stack_.empty() || !marks_.empty()) fail("values are left over at its end");
    return tree_of(nodes_, top, in_.where());
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { in_.fail(what); }
  [[noreturn]] void refuse(const std::string& what) const { in_.refuse(what); }

  void push(Node node) {
    if (nodes_.size() == kMaxNodes) refuse("the pickle holds more than " + std::to_string(kMaxNodes) + " values");
    stack_.push_back(static_cast<Index>(nodes_.size()));
    nodes_.push_back(std::move(node));
  }
  Index pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) fail("a value is missing");
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<Index> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const std::size_t start = marks_.back();
    marks_.pop_back();
    std::vector<Index> items(stack_.begin() + static_cast<std::ptrdiff_t>(start), stack_.end());
    stack_.resize(start);
    return items;
  }
  std::vector<Index> pop_many(int count) {
    std::vector<Index> items(static_cast<std::size_t>(count));
    for (std::size_t i = items.size(); i-- > 0;) items[i] = pop();
    return items;
  }
  Node& top() {
    const Index i = pop();
    stack_.push_back(i);
    return nodes_[i];
  }
  template <typename T>
  const T& need(Index i, const char* what) const {
    const T* value = std::get_if<T>(&nodes_[i]);
    if (value == nullptr) fail(std::string("expected ") + what);
    return *value;
  }

  void step(unsigned char op) {
    if (push_scalar(op) || build_container(op) || memorize(op) || call(op)) return;
    refuse("its pickle uses the operation " + quote_name(std::string(1, static_cast<char>(op))) +
           ", which plain tensors and values do not need");
  }

  // Each of the following functions executes one operation, or returns false if it does not handle it.
  bool push_scalar(unsigned char op) {
    switch (op) {
      case 'N':
        push(std::monostate{});
        return true;
      case 0x88:
      case 0x89:
        push(op == 0x88);
        return true;
      case 'J':
        push(std::int64_t{in_.number<std::int32_t>()});
        return true;
      case 'K':
        push(std::int64_t{in_.number<std::uint8_t>()});
        return true;
      case 'M':
        push(std::int64_t{in_.number<std::uint16_t>()});
        return true;
      case 0x8a:
        push(in_.long_integer());
        return true;
      case 'G':
        push(in_.big_endian_double());
        return true;
      case 'X':
        push(in_.text(in_.number<std::uint32_t>()));
        return true;
      default:
        return false;
    }
  }
  bool build_container(unsigned char op) {
    switch (op) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '}':
        push(Dict{});
        return true;
      case ']':
        push(List{});
        return true;
      case ')':
        push(Tuple{});
        return true;
      case 't':
        push(Tuple{pop_to_mark()});
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push(Tuple{pop_many(op - 0x84)});
        return true;
      case 'e':
        extend<List>(pop_to_mark(), "a list");
        return true;
      case 'a':
        extend<List>(pop_many(1), "a list");
        return true;
      case 'u':
        extend<Dict>(pop_to_mark(), "a dictionary");
        return true;
      case 's':
        extend<Dict>(pop_many(2), "a dictionary");
        return true;
      default:
        return false;
    }
  }
  bool memorize(unsigned char op) {
    switch (op) {
      case 'q':
        memo_[in_.number<std::uint8_t>()] = peek();
        return true;
      case 'r':
        memo_[in_.number<std::uint32_t>()] = peek();
        return true;
      case 'h':
        recall(in_.number<std::uint8_t>());
        return true;
      case 'j':
        recall(in_.number<std::uint32_t>());
        return true;
      default:
        return false;
    }
  }
  bool call(unsigned char op) {
    switch (op) {
      case 0x80:  // PROTO
        if (in_.number<std::uint8_t>() > 3) refuse("its pickle protocol is not 2; save the file with torch's default");
        return true;
      case 'c':
        push_global();
        return true;
      case 'Q':
        push_storage(pop());
        return true;
      case 'R':
        reduce();
        return true;
      case 'b':  // attributes of an OrderedDict, such as a state_dict's _metadata: not part of its content
        pop();
        if (!std::holds_alternative<Dict>(top())) refuse("its pickle sets the state of an object, which is not data");
        return true;
      default:
        return false;
    }
  }

  Index peek() {
    const Index i = pop();
    stack_.push_back(i);
    return i;
  }
  void recall(Index key) {
    const auto it = memo_.find(key);
    if (it == memo_.end()) fail("it recalls a value it has not stored");
    stack_.push_back(it->second);
  }
  template <typename Container>
  void extend(const std::vector<Index>& items, const char* what) {
    auto* container = std::get_if<Container>(&top());
    if (container == nullptr) fail(std::string("expected ") + what);
    if (std::is_same_v<Container, Dict> && items.size() % 2 != 0) fail("a dictionary has a key without a value");
    container->items.insert(container->items.end(), items.begin(), items.end());
  }

  void push_global() {
    const std::string module = in_.line(), name = in_.line();
    if (module == "torch._utils" && name == "_rebuild_tensor_v2") return push(Known::kRebuildTensor);
    if (module == "torch._utils" && name == "_rebuild_parameter") return push(Known::kRebuildParameter);
    if (module == "collections" && name == "OrderedDict") return push(Known::kOrderedDict);
    if (module == "torch" && name == "Size") return push(Known::kSize);
    for (const auto& [storage, dtype] : kStorages) {
      if (module == "torch" && name == storage) return push(dtype);
    }
    refuse("its pickle names " + quote_name(module + "." + name) +
           ", which is not data; only tensors and plain values are read");
  }

  // Persistent id: ("storage", <storage class>, key, location, number of elements).
  void push_storage(Index id) {
    const auto& items = need<Tuple>(id, "a storage").items;
    if (items.size() != 5 || need<std::string>(items[0], "a storage") != "storage") fail("expected a storage");
    const DType dtype = need<DType>(items[1], "a storage class");
    const std::string& key = need<std::string>(items[2], "a storage key");
    const std::int64_t count = need<std::int64_t>(items[4], "a storage size");
    if (key.size() > 32) refuse("the storage " + quote_name(key) + " is missing");
    const std::span<const std::byte> bytes = storages_(key);
    if (count < 0 || static_cast<std::uint64_t>(count) != bytes.size() / dtype_size(dtype) ||
        bytes.size() % dtype_size(dtype) != 0) {
      refuse("the storage " + quote_name(key) + " has " + std::to_string(bytes.size()) + " bytes, but " +
             std::to_string(count) + " elements of " + dtype_name(dtype) + " are expected");
    }
    push(Storage{dtype, bytes});
  }

  void reduce() {
    const Index arguments = pop(), function = pop();
    const auto& given = need<Tuple>(arguments, "a tuple of arguments").items;
    if (given.size() > 7) fail("a function has too many arguments");
    const std::vector<Index> args = given;  // pushing may move the node
    switch (need<Known>(function, "a known function")) {
      case Known::kRebuildTensor:
        return push(tensor(args));
      case Known::kRebuildParameter:  // (tensor, requires_grad, hooks)
        if (args.empty()) fail("a parameter has no tensor");
        return push(PtTensor(need<PtTensor>(args[0], "a tensor")));
      case Known::kOrderedDict:
        if (!args.empty()) refuse("its pickle builds an OrderedDict from arguments");
        return push(Dict{});
      case Known::kSize:
        if (args.size() != 1) fail("a size has more than one argument");
        need<Tuple>(args[0], "a tuple");
        stack_.push_back(args[0]);
        return;
    }
  }

  std::vector<std::int64_t> extents(Index i, const char* what) const {
    const auto& items = need<Tuple>(i, what).items;
    if (items.size() > kMaxRank) refuse("a tensor has more than " + std::to_string(kMaxRank) + " dimensions");
    std::vector<std::int64_t> out;
    for (const Index item : items) out.push_back(need<std::int64_t>(item, what));
    return out;
  }

  // _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]).
  PtTensor tensor(const std::vector<Index>& args) const {
    if (args.size() < 6 || args.size() > 7) fail("a tensor has a wrong number of arguments");
    return tensor_over(need<Storage>(args[0], "a storage"), need<std::int64_t>(args[1], "an offset"),
                       extents(args[2], "size"), extents(args[3], "stride"), owner_, in_.where());
  }

  PickleBytes in_;
  const StorageReader& storages_;
  const std::shared_ptr<const void>& owner_;
  std::vector<Node> nodes_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Index> memo_;
};

}  // namespace

const char* storage_name(DType dtype) {
  for (const auto& [name, type] : kStorages) {
    if (type == dtype) return name;
  }
  return nullptr;
}

PtValue unpickle(std::span<const std::byte> pickle, const StorageReader& storages,
                 const std::shared_ptr<const void>& owner, const std::string& where) {
  return Unpickler(pickle, storages, owner, where).run();
}

}  // namespace oscar
