#include "generate/row_script.h"

#include "base/errors.h"
#include "base/hash.h"
#include "base/random.h"
#include "text/sequences.h"

namespace oscar {
namespace {

constexpr std::uint64_t kOpenerStream = 0x6f70656e;  // differs from the streams that draw tokens
constexpr std::uint64_t kRepeatStream = 0x72657065;
constexpr const char* kAnswer = "ANSWER0";  // placeholder for an answer while a turn is cut out of a rendering

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::string render(const ChatTemplate& chat, Json messages) {
  ChatInput input{.messages = std::move(messages), .add_generation_prompt = true};
  return chat.render(input);
}

}  // namespace

ScriptBook::ScriptBook(const ModelConfig& model, const Tokenizer& tokenizer, const ChatTemplate& chat,
                       std::uint64_t seed)
    : seed_(seed), start_(leading_special_tokens(tokenizer)) {
  for (const std::int64_t id : model.eos_tokens) ends_.insert(static_cast<std::int32_t>(id));
  // Families without a start token separate texts by an end-of-text token.
  if (start_.empty() && model.bos_token >= 0) start_.push_back(static_cast<std::int32_t>(model.bos_token));
  if (start_.empty() && !ends_.empty()) start_.push_back(*ends_.begin());
  if (!start_.empty()) ends_.insert(start_.front());  // a model that writes it begins another text
  for (const std::string& opener : text_openers()) {
    std::vector<std::int32_t> ids = start_;
    const std::vector<std::int32_t> text = tokenizer.encode(opener, false);
    ids.insert(ids.end(), text.begin(), text.end());
    openers_.push_back(std::move(ids));
  }
  if (chat.kind() != "none") add_turns(tokenizer, chat);
}

void ScriptBook::add_turns(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  try {
    for (const std::string& question : questions()) {
      const std::string first = render(chat, Json::array({message("user", question)}));
      const std::string two = render(chat, Json::array({message("user", questions().front()),
                                                        message("assistant", kAnswer), message("user", question)}));
      const std::size_t answer = two.find(kAnswer);
      if (first.empty() || answer == std::string::npos) {
        throw InputError("the chat template leaves out messages of a conversation");
      }
      turns_.push_back(
          {tokenizer.encode(first, false), tokenizer.encode(two.substr(answer + std::string(kAnswer).size()), false)});
    }
  } catch (const InputError& e) {
    turns_.clear();
    fault_ = e.what();
    return;
  }
  turn_ends_ = ends_;
  // The token after an answer ends it if no text contains this token.
  const std::vector<std::int32_t>& next = turns_.front().next;
  if (!next.empty() && tokenizer.decode({next.front()}, true).empty()) turn_ends_.insert(next.front());
}

std::size_t ScriptBook::draw(std::int64_t row, std::int64_t number, std::size_t count) const {
  return random_bits(seed_ ^ kOpenerStream, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(number)) %
         count;
}

std::vector<std::int32_t> ScriptBook::begin(std::int64_t row) const {
  if (chat_row(row)) return turns_[draw(row, 0, turns_.size())].begin;
  // Without a start token the model has nothing to continue.
  if (row % 2 == 1 || start_.empty()) return openers_[draw(row, 0, openers_.size())];
  return start_;
}

bool ScriptBook::ends(std::int64_t row, std::int32_t token) const {
  return (chat_row(row) ? turn_ends_ : ends_).contains(token);
}

std::vector<std::int32_t> ScriptBook::next(std::int64_t row, std::int64_t number, std::int32_t token) const {
  std::vector<std::int32_t> ids;
  if (chat_row(row)) {
    const Turn& turn = turns_[draw(row, number, turns_.size())];
    // An end-of-text token ends the conversation.
    ids = !turn.next.empty() && turn.next.front() == token ? turn.next : turn.begin;
  } else if (row % 2 == 1 || start_.empty()) {
    ids = openers_[draw(row, number, openers_.size())];
  } else {
    ids = start_;
  }
  if (!ids.empty() && ids.front() == token) ids.erase(ids.begin());  // the row already has it
  return ids;
}

std::optional<std::int64_t> ScriptBook::repeated_from(std::int64_t row, std::int64_t position) const {
  const std::int64_t starts = position - kRepeatDistance - kRepeatedTokens;  // latest start that is far enough back
  if (position % kRepeatEvery != kRepeatEvery / 2 || starts < 1) return std::nullopt;
  const std::uint64_t bits =
      random_bits(seed_ ^ kRepeatStream, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(position));
  return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(starts));
}

std::string ScriptBook::sha256() const {
  Json all = {{"start", start_},
              {"ends", ends_},
              {"turn_ends", turn_ends_},
              {"openers", openers_},
              {"repeats", {kRepeatedTokens, kRepeatDistance, kRepeatEvery}}};
  all["turns"] = Json::array();
  for (const Turn& turn : turns_) all["turns"].push_back({turn.begin, turn.next});
  return sha256_hex(dump_json(all));
}

}  // namespace oscar
