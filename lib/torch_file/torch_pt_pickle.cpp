#include "torch_file/torch_pt_pickle.h"

#include <bit>
#include <limits>
#include <map>
#include <tuple>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/utf8.h"

namespace oscar {
namespace {

// Writes protocol 2 without a memo: every value is written in full. Torch's restricted loader reads this as well as
// memoized text.
class Pickler {
 public:
  Pickled run(const PtValue& value) {
    out_.pickle = "\x80\x02";
    write(value);
    text() += '.';
    return std::move(out_);
  }

 private:
  std::string& text() { return out_.pickle; }

  void write(const PtValue& value) {
    std::visit([this](const auto& v) { put(v); }, value.data);
  }
  void put(std::monostate) { text() += 'N'; }
  void put(bool value) { text() += value ? '\x88' : '\x89'; }
  void put(std::int64_t value) {
    if (value >= 0 && value < 256) {
      text() += 'K';
      little_endian(static_cast<std::uint64_t>(value), 1);
    } else if (value >= 0 && value < 65536) {
      text() += 'M';
      little_endian(static_cast<std::uint64_t>(value), 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      text() += 'J';
      little_endian(static_cast<std::uint64_t>(value), 4);
    } else {
      text() += "\x8a\x08";
      little_endian(static_cast<std::uint64_t>(value), 8);
    }
  }
  void put(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    text() += 'G';
    for (int shift = 56; shift >= 0; shift -= 8) text() += static_cast<char>(bits >> shift & 255);
  }
  void put(const std::string& value) {
    if (!is_utf8(value) || value.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw InputError("a .pt file cannot hold the text " + quote_name(value) + ", which is not UTF-8");
    }
    text() += 'X';
    little_endian(value.size(), 4);
    text() += value;
  }
  void put(const PtList& list) {
    text() += ']';
    if (list.empty()) return;
    text() += '(';
    for (const PtValue& item : list) write(item);
    text() += 'e';
  }
  void put(const PtDict& dict) {
    text() += '}';
    if (dict.empty()) return;
    text() += '(';
    for (const auto& [key, item] : dict) {
      if (key.as<std::int64_t>() == nullptr && key.as<std::string>() == nullptr) {
        throw InputError(std::string("a .pt dictionary cannot have ") + key.type_name() + " as a key");
      }
      write(key);
      write(item);
    }
    text() += 'u';
  }
  void put(const PtTensor& tensor) {
    const char* const storage = storage_name(tensor.dtype);
    if (storage == nullptr) {
      throw InputError(std::string("a .pt file cannot hold a tensor of type ") + dtype_name(tensor.dtype));
    }
    text() += "ctorch._utils\n_rebuild_tensor_v2\n((";
    put(std::string("storage"));
    text() += std::string("ctorch\n") + storage + "\n";
    put(std::to_string(storage_index(tensor)));
    put(std::string("cpu"));
    put(tensor.elements());
    text() += "tQK";  // the storage; the offset, 0
    text() += std::string(1, '\0') + '(';
    for (const std::int64_t extent : tensor.shape) put(extent);
    text() += "t(";
    std::int64_t step = tensor.elements();
    for (const std::int64_t extent : tensor.shape) {  // row-major; strides of an empty tensor have no meaning
      step = extent == 0 ? 0 : step / extent;
      put(step);
    }
    text() +=
        "t\x89"
        "ccollections\nOrderedDict\n)RtR";  // requires_grad False, no hooks
  }

  // Tensors over the same elements of the same bytes share a storage, as in torch.
  std::size_t storage_index(const PtTensor& tensor) {
    const auto id = std::tuple(tensor.data.data(), tensor.dtype, tensor.shape, tensor.strides);
    const auto [it, fresh] = storages_.emplace(id, out_.storages.size());
    if (fresh) out_.storages.push_back(tensor.bytes());
    return it->second;
  }

  void little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text() += static_cast<char>(value >> (8 * i) & 255);
  }

  Pickled out_;
  std::map<std::tuple<const std::byte*, DType, std::vector<std::int64_t>, std::vector<std::int64_t>>, std::size_t>
      storages_;
};

}  // namespace

Pickled pickle(const PtValue& value) { return Pickler().run(value); }

}  // namespace oscar
