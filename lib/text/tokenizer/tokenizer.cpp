#include "text/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/budget.h"
#include "base/errors.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/components.h"
#include "text/tokenizer/config_tokens.h"
#include "text/tokenizer/stages.h"
#include "text/tokenizer/token_model.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

// A component that processes texts.
const Json& steps(const Json& file, const char* key, const char* part, const std::string& where) {
  const Json& description = json_member(file, key);
  require_few_steps(description, part, where);
  return description;
}

// A few seconds plus ten times the cost per byte of common tokenizers.
Budget::Limits limits(std::size_t bytes) {
  return {3'000'000'000 + 2000 * std::uint64_t{bytes}, (std::uint64_t{256} << 20) + 256 * std::uint64_t{bytes}};
}

}  // namespace

struct Tokenizer::Impl {
  Impl(const TokenizerJson& file, const Json& more_tokens, const std::string& where)
      : model(make_token_model(file, where)),
        normalizer(make_normalizer(steps(file.rest, "normalizer", "normalizer", where), where)),
        pre_tokenizer(make_pre_tokenizer(steps(file.rest, "pre_tokenizer", "pre-tokenizer", where), where)),
        added(file.rest, more_tokens, *model, normalizer.get(), where),
        post_processor(json_member(file.rest, "post_processor"), where),
        decoder(make_token_decoder(steps(file.rest, "decoder", "decoder", where), where)),
        name(where) {}

  // Encodes the words of a normalized text without added tokens.
  void encode_text(std::string text, bool at_start, TokenModel::Session& session,
                   std::vector<std::int32_t>& ids) const {
    PreTokenized words(std::move(text), at_start);
    if (pre_tokenizer != nullptr) pre_tokenizer->apply(words);
    for (const auto& span : words.spans) {
      Budget::spend(60 + 100 * (span.end - span.begin));
      session.encode(words.view(span), ids);
    }
  }

  std::unique_ptr<TokenModel> model;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  AddedTokens added;
  PostProcessor post_processor;
  std::unique_ptr<TokenDecoder> decoder;
  std::string name;  // of the file
};

namespace {

// Whether a ByteLevel pre-tokenizer is told to add no space in front of a text.
bool says_no_prefix_space(const Json& pre_tokenizer) {
  const Json& parts = json_member(pre_tokenizer, "pretokenizers");
  if (parts.is_array()) return std::any_of(parts.begin(), parts.end(), says_no_prefix_space);
  return json_member(pre_tokenizer, "type") == "ByteLevel" && json_member(pre_tokenizer, "add_prefix_space") == false;
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_file(const fs::path& tokenizer_json) {
  if (!path_exists(tokenizer_json)) refuse_missing_tokenizer(tokenizer_json);
  const std::string where = tokenizer_json.string();
  Tokenizer tokenizer;
  const TokenizerJson file = parse_tokenizer_json(read_file(tokenizer_json, kMaxFileBytes), where);
  const ConfigTokens beside = read_config_tokens(tokenizer_json.parent_path(), json_member(file.rest, "added_tokens"));
  if (beside.prefix_space && says_no_prefix_space(json_member(file.rest, "pre_tokenizer"))) {
    throw InputError((tokenizer_json.parent_path() / "tokenizer_config.json").string() +
                     ": 'add_prefix_space' is true, but tokenizer.json adds no space, and classes of transformers "
                     "differ in which of them counts; make both equal, or pass {\"input_ids\": [...]} rows");
  }
  tokenizer.impl_ = std::make_unique<Impl>(file, beside.added, where);
  return tokenizer;
}

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& where) {
  Tokenizer tokenizer;
  tokenizer.impl_ = std::make_unique<Impl>(parse_tokenizer_json(text, where), Json::array(), where);
  return tokenizer;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const Budget budget(impl_->name + ": encoding a text of " + format_bytes(text.size()), limits(text.size()));
  std::string repaired;
  if (find_invalid_utf8(text) != std::string_view::npos) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<std::int32_t> ids;
  const std::unique_ptr<TokenModel::Session> session = impl_->model->start();
  for (const Segment& raw : impl_->added.split(text, false)) {
    if (raw.token >= 0) {
      ids.push_back(raw.token);
      continue;
    }
    std::string normalized(text.substr(raw.begin, raw.end - raw.begin));
    const bool removed = impl_->normalizer != nullptr && impl_->normalizer->apply(normalized);
    const bool raw_at_start = raw.begin == 0 && !removed;
    if (!impl_->added.any(true)) {
      impl_->encode_text(std::move(normalized), raw_at_start, *session, ids);
      continue;
    }
    for (const Segment& part : impl_->added.split(normalized, true)) {
      if (part.token >= 0) {
        ids.push_back(part.token);
      } else {
        impl_->encode_text(normalized.substr(part.begin, part.end - part.begin), raw_at_start && part.begin == 0,
                           *session, ids);
      }
    }
  }
  if (add_special_tokens) impl_->post_processor.add_special_tokens(ids);
  return ids;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids, bool skip_special_tokens) const {
  const Budget budget(impl_->name + ": decoding " + std::to_string(ids.size()) + " tokens", limits(16 * ids.size()));
  std::vector<std::string> pieces;
  pieces.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const AddedToken* added = impl_->added.find(id);
    const std::string* text = added != nullptr ? &added->shown : impl_->model->text_of(id);
    if (text == nullptr) continue;  // ids without a token decode to nothing
    if (skip_special_tokens && impl_->added.is_special(*text)) continue;
    Budget::spend(100 + text->size());
    pieces.push_back(*text);
  }
  const char* separator = "";
  if (impl_->decoder != nullptr) {
    impl_->decoder->apply(pieces);
  } else {
    separator = " ";
  }
  std::string text;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) text += separator;
    text += pieces[i];
  }
  return text;
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto added = impl_->added.id_of(token);
  return added ? added : impl_->model->id_of(token);
}

std::int64_t Tokenizer::vocabulary_size() const {
  return std::int64_t{
             std::max({impl_->model->highest_id(), impl_->added.highest_id(), impl_->post_processor.highest_id()})} +
         1;
}

const Tokenizer& LazyTokenizer::get() const {
  if (given_ != nullptr) return *given_;
  if (!own_) own_ = Tokenizer::from_file(file_);
  return *own_;
}

}  // namespace oscar
