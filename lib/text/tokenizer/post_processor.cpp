#include "text/tokenizer/stages.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "text/tokenizer/components.h"

namespace oscar {
namespace {

// Limit on ids added to every text. Known templates add one or two.
constexpr std::size_t kMostAdded = 4096;

std::int32_t token_of(const Json& id, const std::string& name, const std::string& where) {
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= std::numeric_limits<std::int32_t>::max()) {
    throw InputError(where + ": special token '" + printable(name) +
                     "' has a bad id, expected an integer from 0 to 2147483646");
  }
  return id.get<std::int32_t>();
}

// The ids of a template's special token.
std::vector<std::int32_t> special_ids(const Json& description, const std::string& name, const std::string& where) {
  const Json& tokens = json_object(description, "special_tokens", where);
  const auto entry = tokens.find(name);
  if (entry == tokens.end()) {
    throw InputError(where + ": the template uses '" + printable(name) + "', which 'special_tokens' does not define");
  }
  std::vector<std::int32_t> ids;
  for (const Json& id : json_array(*entry, "ids", where)) ids.push_back(token_of(id, name, where));
  return ids;
}

// ["<s>", 1], the form of tokens in BertProcessing and RobertaProcessing.
std::int32_t named_token(const Json& description, const char* key, const std::string& where) {
  const Json& pair = json_array(description, key, where);
  if (pair.size() != 2 || !pair[0].is_string()) {
    throw InputError(where + ": '" + key + "' is not a token and its id, such as [\"<s>\", 1]");
  }
  return token_of(pair[1], pair[0].get<std::string>(), where);
}

void require_few(std::size_t added, const std::string& where) {
  if (added <= kMostAdded) return;
  throw InputError(where + ": the post-processor adds more than " + std::to_string(kMostAdded) +
                   " tokens to each text, which is no tokenizer's; fetch the file again");
}

}  // namespace

PostProcessor::PostProcessor(const Json& description, const std::string& where) { read(description, where); }

void PostProcessor::read(const Json& description, const std::string& where) {
  if (description.is_null()) return;
  const std::string type = json_string(description, "type", where);
  if (type == "ByteLevel") return;  // changes only offsets
  if (type == "Sequence") {
    for (const Json& step : json_array(description, "processors", where)) read(step, where);
    return;
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    add({{named_token(description, "cls", where)}, {named_token(description, "sep", where)}}, where);
    return;
  }
  if (type != "TemplateProcessing") {
    refuse_component(where, "post-processor", type,
                     "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and Sequence");
  }
  Frame frame;
  bool seen = false;
  for (const Json& piece : json_array(description, "single", where)) {
    if (piece.is_object() && piece.contains("Sequence")) {
      const std::string id = json_string(json_object(piece, "Sequence", where), "id", where);
      if (seen || id != "A") {
        throw InputError(where + ": the template for one text must hold the sequence A exactly once");
      }
      seen = true;
    } else if (piece.is_object() && piece.contains("SpecialToken")) {
      const std::string id = json_string(json_object(piece, "SpecialToken", where), "id", where);
      auto& side = seen ? frame.after : frame.before;
      for (const std::int32_t token : special_ids(description, id, where)) side.push_back(token);
      require_few(frame.before.size() + frame.after.size(), where);
    } else {
      throw InputError(where + ": a template piece is neither a Sequence nor a SpecialToken");
    }
  }
  if (!seen) throw InputError(where + ": the template for one text does not hold the sequence A");
  add(std::move(frame), where);
}

void PostProcessor::add(Frame frame, const std::string& where) {
  added_ += frame.before.size() + frame.after.size();
  require_few(added_, where);
  frames_.push_back(std::move(frame));
}

void PostProcessor::add_special_tokens(std::vector<std::int32_t>& ids) const {
  for (const Frame& frame : frames_) {
    ids.insert(ids.begin(), frame.before.begin(), frame.before.end());
    ids.insert(ids.end(), frame.after.begin(), frame.after.end());
  }
}

std::int32_t PostProcessor::highest_id() const {
  std::int32_t highest = -1;
  for (const Frame& frame : frames_) {
    for (const auto* side : {&frame.before, &frame.after}) {
      for (const std::int32_t id : *side) highest = std::max(highest, id);
    }
  }
  return highest;
}

}  // namespace oscar
