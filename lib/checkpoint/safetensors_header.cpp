#include "checkpoint/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/budget.h"
#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

using Plain = nlohmann::json;

// nlohmann's event interface. The state is the position of the next value in the header.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}
  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) {
    if (state_ == State::kFile) {
      state_ = State::kTop;
    } else if (state_ == State::kEntry) {
      state_ = metadata_ ? State::kMetadata : State::kTensor;
      keys_.clear();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& name) {
    Budget::spend(200 + name.size());
    if (state_ == State::kTop) {
      if (!names_.insert(name).second) fail("the header has the name " + quote_name(name) + " twice");
      metadata_ = name == "__metadata__";
      tensor_ = HeaderTensor{};
      tensor_.name = std::move(name);
      seen_ = 0;
      state_ = State::kEntry;
    } else if (state_ == State::kMetadata) {
      if (!keys_.insert(name).second) fail("__metadata__ has the key " + quote_name(name) + " twice");
      key_ = std::move(name);
    } else {  // kTensor
      const int bit = name == "dtype" ? kDType : name == "shape" ? kShape : name == "data_offsets" ? kOffsets : 0;
      if (bit == 0) fail(tensor() + " has the unknown key " + quote_name(name));
      if ((seen_ & bit) != 0) fail(tensor() + " has the key " + quote_name(name) + " twice");
      seen_ |= bit;
      state_ = bit == kDType ? State::kDTypeValue : bit == kShape ? State::kShapeValue : State::kOffsetsValue;
    }
    return true;
  }

  bool end_object() {
    if (state_ == State::kTensor) {
      if (seen_ != (kDType | kShape | kOffsets)) fail(tensor() + " lacks dtype, shape or data_offsets");
      header_.tensors.push_back(std::move(tensor_));
      state_ = State::kTop;
    } else if (state_ == State::kMetadata) {
      state_ = State::kTop;
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (state_ == State::kShapeValue) {
      state_ = State::kShapeItems;
    } else if (state_ == State::kOffsetsValue) {
      state_ = State::kOffsetItems;
      offsets_ = 0;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    if (state_ == State::kOffsetItems && offsets_ != 2) fail(tensor() + " must have two data_offsets");
    state_ = State::kTensor;
    return true;
  }

  bool string(std::string& value) {
    if (state_ == State::kMetadata) {
      header_.metadata.emplace(std::move(key_), std::move(value));
    } else if (state_ == State::kDTypeValue) {
      const auto dtype = dtype_from_name(value);
      if (!dtype) fail(tensor() + " has dtype " + quote_name(value) + ", expected one of " + dtype_names());
      tensor_.dtype = *dtype;
      if (*dtype == DType::kOther) tensor_.other_type = std::move(value);
      state_ = State::kTensor;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (state_ == State::kShapeItems) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(tensor() + " has an extent beyond 63 bits");
      }
      if (tensor_.shape.size() == kMaxRank) fail(tensor() + " has more than " + std::to_string(kMaxRank) + " extents");
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (state_ == State::kOffsetItems) {
      if (offsets_ >= 2) fail(tensor() + " must have two data_offsets");
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool number_integer(std::int64_t value) {
    if (state_ == State::kShapeItems || state_ == State::kOffsetItems) {
      fail(tensor() + " has the negative number " + std::to_string(value) + " in its shape or data_offsets");
    }
    unexpected("a number");
    return false;
  }
  bool number_float(double, const std::string& text) {
    if (state_ == State::kShapeItems || state_ == State::kOffsetItems) {
      fail(tensor() + " has " + quote_name(text) + " in its shape or data_offsets, expected a 64-bit whole number");
    }
    unexpected("a number");
    return false;
  }
  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool binary(std::vector<std::uint8_t>&) { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    fail("the header is not valid JSON in UTF-8 (byte " + std::to_string(position) + ")");
    return false;
  }

 private:
  enum class State {
    kFile,  // before the outer object
    kTop,
    kEntry,
    kTensor,
    kMetadata,
    kDTypeValue,
    kShapeValue,
    kShapeItems,
    kOffsetsValue,
    kOffsetItems
  };
  static constexpr int kDType = 1, kShape = 2, kOffsets = 4;
  static constexpr std::size_t kMaxRank = 32;

  std::string tensor() const { return "tensor " + quote_name(tensor_.name); }
  [[noreturn]] void fail(const std::string& what) const { throw InputError(where_ + ": " + what); }
  bool unexpected(const std::string& found) const {
    switch (state_) {
      case State::kFile:
      case State::kTop:
        fail("the header is " + found + ", expected a JSON object");
      case State::kEntry:
        fail((metadata_ ? "__metadata__" : tensor()) + " is " + found + ", expected an object");
      case State::kMetadata:
        fail("__metadata__ holds " + found + " under " + quote_name(key_) + ", expected a string");
      case State::kDTypeValue:
        fail(tensor() + " has " + found + " as dtype, expected a string");
      default:
        fail(tensor() + " has " + found + " in its shape or data_offsets, expected whole numbers in an array");
    }
  }

  const std::string& where_;
  SafetensorsHeader header_;
  State state_ = State::kFile;
  bool metadata_ = false;
  HeaderTensor tensor_;
  int seen_ = 0, offsets_ = 0;
  std::string key_;
  std::unordered_set<std::string> names_, keys_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& where) {
  HeaderReader reader(where);
  Plain::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

}  // namespace oscar
