#include "checkpoint/shard_index.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/budget.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_rules.h"

namespace oscar {
namespace {

// A shard is in the checkpoint's directory or a subfolder: no absolute path, no "..", no NUL characters.
bool is_inside(const std::string& name) {
  if (name.empty() || name.front() == '/' || name.back() == '/' || name.size() > 1024) return false;
  if (name.find('\0') != std::string::npos || name.find('\\') != std::string::npos) return false;
  return ("/" + name + "/").find("/../") == std::string::npos;
}

class IndexReader {
 public:
  explicit IndexReader(const std::string& where) : where_(where) {}
  std::map<std::string, std::string> take() {
    if (!found_) fail("has no 'weight_map'");
    return std::move(map_);
  }

  bool start_object(std::size_t) { return open(); }
  bool start_array(std::size_t) {
    if (depth_ == 0) fail("is an array, expected a JSON object");
    in_map("an array");
    return open();
  }
  bool end_object() {
    if (inside_ && depth_ == 2) inside_ = false;
    --depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }

  bool key(std::string& name) {
    Budget::spend(200 + name.size());
    if (depth_ == 1) {
      next_is_map_ = name == "weight_map";
      if (next_is_map_ && std::exchange(found_, true)) map_.clear();  // as in Python the last one counts
    } else if (inside_) {
      key_ = std::move(name);
    }
    return true;
  }

  bool string(std::string& value) {
    if (!inside_) return scalar("a string");
    if (!is_inside(value)) {
      fail("the file " + quote_name(value) + " of tensor " + quote_name(key_) +
           " is not inside the checkpoint's directory");
    }
    map_.insert_or_assign(std::move(key_), std::move(value));
    return true;
  }
  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("true or false"); }
  bool number_integer(std::int64_t) { return scalar("a number"); }
  bool number_unsigned(std::uint64_t) { return scalar("a number"); }
  bool number_float(double, const std::string&) { return scalar("a number"); }
  bool binary(std::vector<std::uint8_t>&) { return scalar("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    fail("is not valid JSON in UTF-8 (byte " + std::to_string(position) + ")");
  }

 private:
  static constexpr int kMaxDepth = 64;

  [[noreturn]] void fail(const std::string& what) const { throw InputError(where_ + ": " + what); }
  void in_map(const char* found) const {
    if (inside_) fail("the shard of tensor " + quote_name(key_) + " is " + found + ", expected a file name");
    if (depth_ == 1 && next_is_map_) fail("'weight_map' is " + std::string(found) + ", expected an object");
  }
  bool open() {
    if (inside_) in_map("an object");
    if (depth_ == kMaxDepth) fail("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    if (depth_ == 1 && next_is_map_) inside_ = true;
    ++depth_;
    return true;
  }
  bool scalar(const char* found) const {
    if (depth_ == 0) fail("is " + std::string(found) + ", expected a JSON object");
    in_map(found);
    return true;
  }

  const std::string& where_;
  std::map<std::string, std::string> map_;
  std::string key_;
  int depth_ = 0;
  bool next_is_map_ = false, inside_ = false, found_ = false;
};

}  // namespace

std::map<std::string, std::string> parse_shard_index(std::string_view json, const std::string& where) {
  IndexReader reader(where);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

std::uint64_t parse_total_size(std::string_view json, const std::string& where) {
  const Json index = parse_python_json(json, where);
  const Json& size = json_member(json_member(index, "metadata"), "total_size");
  if (size.is_null()) return 0;
  // Some tools write it as a float: 1.5e9.
  const double bytes = size.is_number() ? size.get<double>() : -1.0;
  if (!(bytes >= 0.0 && bytes <= 1e18)) {
    throw InputError(where + ": 'total_size' of 'metadata' is " + size.dump().substr(0, 40) +
                     ", expected a number of bytes");
  }
  return size.is_number_integer() ? size.get<std::uint64_t>() : static_cast<std::uint64_t>(bytes);
}

}  // namespace oscar
