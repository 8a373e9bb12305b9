#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <unordered_set>

#include "base/budget.h"
#include "base/errors.h"
#include "base/json_rules.h"

namespace oscar {
namespace {

constexpr std::size_t kMaxDepth = 64;
// Tokenizers with a million entries need a tenth of this.
constexpr Budget::Limits kLimits{3'000'000'000, std::uint64_t{4} << 30};
constexpr std::uint64_t kValueSteps = 100, kEntrySteps = 300;  // per entry of the vocabulary or the merges

// Reads a number like the Python package: its digits as one integer, then one division or multiplication by a power of
// ten. The result is sometimes off by one unit in the last place, which decides between paths of equal scores. nullopt
// for numbers whose size or length needs more steps.
std::optional<double> quickly_read(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const std::size_t e = std::min(text.find_first_of("eE"), text.size());
  std::uint64_t digits = 0;
  int exponent = 0;
  bool fraction = false, full = false;
  for (const char c : text.substr(0, e)) {
    if (c == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<std::uint64_t>(c - '0');
    full = full || digits > (std::numeric_limits<std::uint64_t>::max() - digit) / 10;
    if (full && !fraction) return std::nullopt;
    if (full) continue;  // drops further digits of a fraction
    digits = digits * 10 + digit;
    exponent -= fraction ? 1 : 0;
  }
  if (e < text.size()) {
    const std::string power(text.substr(e + (text.substr(e + 1).starts_with('+') ? 2 : 1)));
    if (power.size() > 5) return std::nullopt;
    exponent += std::atoi(power.c_str());
  }
  if (exponent < -308 || exponent > 308) return std::nullopt;
  const double power = std::strtod(("1e" + std::to_string(std::abs(exponent))).c_str(), nullptr);
  const double value = exponent < 0 ? static_cast<double>(digits) / power : static_cast<double>(digits) * power;
  if (!std::isfinite(value)) return std::nullopt;
  return negative ? -value : value;
}

// Receives nlohmann's parse events. Stores values under /model/vocab and /model/merges directly.
class Reader {
 public:
  Reader(std::string_view text, TokenizerJson& out, const std::string& where) : text_(text), out_(out), where_(where) {}

  bool null() { return scalar(Json(nullptr), "null"); }
  bool boolean(bool value) { return scalar(Json(value), "true or false"); }
  bool number_float(double value, const std::string& text) {
    if (in_scores()) return add_score(quickly_read(text).value_or(value));
    return scalar(Json(value), "a fraction");
  }
  bool binary(Json::binary_t&) { fail("holds binary data"); }

  bool number_integer(std::int64_t value) {
    if (in_scores()) return add_score(static_cast<double>(value));
    if (in_vocabulary()) return add_id(value);
    return scalar(Json(value), "a number");
  }
  bool number_unsigned(std::uint64_t value) {
    if (in_scores()) return add_score(static_cast<double>(value));
    if (in_vocabulary()) {
      const auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      return add_id(static_cast<std::int64_t>(std::min(value, limit)));
    }
    return scalar(Json(value), "a number");
  }

  bool string(std::string& value) {
    if (in_scores()) {
      if (levels_.size() != scores_level_ + 1 || piece_.has_value()) bad_score("a string");
      piece_ = std::move(value);
      return true;
    }
    if (in_merges()) {
      Budget::spend(kEntrySteps);
      Budget::hold(64 + value.size());
      if (levels_.size() == merges_level_ + 1) {  // a pair ["a", "b"]
        merge_parts_.push_back(std::move(value));
      } else {
        add_merge_line(value);
      }
      return true;
    }
    return scalar(Json(std::move(value)), "a string");
  }

  bool start_object(std::size_t) {
    if (in_merges()) bad_merge("an object");
    if (in_scores()) bad_score("an object");
    if (in_vocabulary()) bad_id("an object");
    if (at_model_key("vocab")) {
      vocabulary_level_ = levels_.size() + 1;
      levels_.push_back({nullptr, {}, {}});
      return check_depth();
    }
    return open(Json::object());
  }
  bool start_array(std::size_t) {
    if (in_vocabulary()) bad_id("an array");
    if (in_scores()) {
      if (levels_.size() != scores_level_) bad_score("an array in an array");
      piece_.reset();
      has_score_ = false;
      levels_.push_back({nullptr, {}, {}});
      return true;
    }
    if (at_model_key("vocab")) {
      scores_level_ = levels_.size() + 1;
      levels_.push_back({nullptr, {}, {}});
      return check_depth();
    }
    if (in_merges()) {
      if (levels_.size() != merges_level_) bad_merge("an array in an array");
      merge_parts_.clear();
      levels_.push_back({nullptr, {}, {}});
      return true;
    }
    if (at_model_key("merges")) {
      merges_level_ = levels_.size() + 1;
      levels_.push_back({nullptr, {}, {}});
      return check_depth();
    }
    return open(Json::array());
  }

  bool key(std::string& value) {
    Level& level = levels_.back();
    if (in_vocabulary()) {
      level.key = std::move(value);
      return true;  // repeated texts are detected when the map is built
    }
    if (!level.keys.insert(value).second) fail("has the key '" + printable(value) + "' twice in one object");
    Budget::hold(64 + value.size());
    level.key = std::move(value);
    return true;
  }
  bool end_object() {
    if (in_vocabulary()) vocabulary_level_ = 0;
    levels_.pop_back();
    return true;
  }
  bool end_array() {
    if (in_scores()) {
      if (levels_.size() == scores_level_) {
        scores_level_ = 0;
      } else if (!has_score_) {
        bad_score("a list without a score");
      }
    }
    if (in_merges()) {
      if (levels_.size() == merges_level_) {
        merges_level_ = 0;
      } else {
        if (merge_parts_.size() != 2) bad_merge("a list of " + std::to_string(merge_parts_.size()));
        out_.merges.emplace_back(std::move(merge_parts_[0]), std::move(merge_parts_[1]));
      }
    }
    levels_.pop_back();
    return true;
  }
  bool parse_error(std::size_t bytes_read, const std::string&, const nlohmann::detail::exception& e) {
    fail(json_fault(text_, bytes_read, e.what()));
  }

 private:
  struct Level {
    Json* value;      // null inside the vocabulary and the merges
    std::string key;  // of the current member
    std::unordered_set<std::string> keys;
  };

  [[noreturn]] void fail(const std::string& what) const { throw InputError(where_ + ": " + what); }
  [[noreturn]] void bad_merge(const std::string& found) const {
    fail("merge " + std::to_string(out_.merges.size()) + " is " + found + ", expected \"a b\" or [\"a\", \"b\"]");
  }
  [[noreturn]] void bad_score(const std::string& found) const {
    fail("entry " + std::to_string(out_.pieces.size()) + " of the vocabulary holds " + found +
         ", expected [\"text\", score]");
  }
  [[noreturn]] void bad_id(const std::string& found) const {
    fail("the id of token '" + printable(levels_.back().key) + "' is " + found +
         ", expected an integer from 0 to 2147483646");
  }

  bool in_vocabulary() const { return vocabulary_level_ != 0 && levels_.size() >= vocabulary_level_; }
  bool in_merges() const { return merges_level_ != 0 && levels_.size() >= merges_level_; }
  bool in_scores() const { return scores_level_ != 0 && levels_.size() >= scores_level_; }
  bool at_model_key(const char* name) const {
    return levels_.size() == 2 && levels_[0].key == "model" && levels_[1].key == name && levels_[1].value->is_object();
  }
  bool check_depth() const {
    if (levels_.size() > kMaxDepth) fail("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    return true;
  }

  Json* place(Json value) {
    Budget::spend(kValueSteps);
    Budget::hold(sizeof(Json));
    if (levels_.empty()) {
      out_.rest = std::move(value);
      return &out_.rest;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::move(value));
      return &level.value->back();
    }
    auto& members = level.value->get_ref<Json::object_t&>();  // key() checked that it is new, so no search is needed
    members.emplace_back(level.key, std::move(value));
    return &members.back().second;
  }
  bool open(Json value) {
    Json* placed = place(std::move(value));
    levels_.push_back({placed, {}, {}});
    return check_depth();
  }
  bool scalar(Json value, const char* kind) {
    if (in_scores()) bad_score(kind);
    if (in_vocabulary()) bad_id(kind);
    if (in_merges()) bad_merge(kind);
    place(std::move(value));
    return true;
  }

  bool add_id(std::int64_t id) {
    Budget::spend(kEntrySteps);
    if (id < 0 || id >= std::numeric_limits<std::int32_t>::max()) bad_id(std::to_string(id));
    out_.vocabulary.emplace_back(std::move(levels_.back().key), static_cast<std::int32_t>(id));
    return true;
  }
  bool add_score(double score) {
    if (levels_.size() != scores_level_ + 1 || !piece_.has_value() || has_score_) bad_score("a number");
    Budget::spend(kEntrySteps);
    Budget::hold(64 + piece_->size());
    out_.pieces.emplace_back(std::move(*piece_), score);
    has_score_ = true;
    return true;
  }
  void add_merge_line(const std::string& line) {
    if (line.starts_with("#version")) return;  // the first line of merges.txt, which some converters keep
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
      bad_merge("'" + printable(line) + "'");
    out_.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }

  const std::string_view text_;
  TokenizerJson& out_;
  const std::string& where_;
  std::vector<Level> levels_;
  std::size_t vocabulary_level_ = 0, merges_level_ = 0;  // depth of that container while it is open, otherwise 0
  std::vector<std::string> merge_parts_;
  std::size_t scores_level_ = 0;  // the same for a Unigram model's list of pieces and scores
  std::optional<std::string> piece_;
  bool has_score_ = false;
};

void require_unique(const TokenizerJson& file, const std::string& where) {
  std::unordered_set<std::string_view> texts;
  std::unordered_set<std::int32_t> ids;
  texts.reserve(file.vocabulary.size());
  ids.reserve(file.vocabulary.size());
  for (const auto& [text, id] : file.vocabulary) {
    if (!texts.insert(text).second)
      throw InputError(where + ": the vocabulary has the token '" + printable(text) + "' twice");
    if (!ids.insert(id).second) {
      throw InputError(where + ": the vocabulary gives the id " + std::to_string(id) + " to two tokens, '" +
                       printable(text) + "' is the second");
    }
  }
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  TokenizerJson file;
  const Budget budget(where + ": reading this JSON", kLimits);
  Reader reader(text, file, where);
  Json::sax_parse(text.begin(), text.end(), &reader);
  if (!file.rest.is_object()) throw InputError(where + ": found " + file.rest.type_name() + ", expected a JSON object");
  const Json& model = json_object(file.rest, "model", where);
  // Old files do not name the model; only Unigram's vocabulary is a list.
  const bool has_pieces = !file.pieces.empty();
  const std::string type = json_string(model, "type", where + ": model", has_pieces ? "Unigram" : "BPE");
  if (type != "BPE" && type != "Unigram") {
    throw InputError(where + ": the tokenizer model is '" + printable(type) +
                     "', supported are BPE and Unigram; pass prompts as {\"input_ids\": [...]} rows instead");
  }
  file.kind = type == "BPE" ? TokenizerJson::Kind::kBpe : TokenizerJson::Kind::kUnigram;
  const bool is_list = file.kind == TokenizerJson::Kind::kUnigram;
  if (is_list ? has_pieces : !file.vocabulary.empty()) {
    require_unique(file, where);
    return file;
  }
  if (has_pieces || !file.vocabulary.empty()) {
    throw InputError(
        where + ": the vocabulary (model.vocab) of the " + type + " model is " +
        (has_pieces ? "a list, expected an object of ids" : "an object, expected a list of [\"text\", score]"));
  }
  throw InputError(where + ": the vocabulary (model.vocab) is missing or empty");
}

}  // namespace oscar
