#include "text/tokenizer/unigram.h"

#include <algorithm>
#include <limits>

#include "base/budget.h"
#include "base/errors.h"
#include "text/unicode/unicode.h"

namespace oscar {

class Unigram::Session : public TokenModel::Session {
 public:
  explicit Session(const Unigram& model) : model_(model) {}

  void encode(std::string_view word, std::vector<std::int32_t>& ids) override {
    Budget::hold(sizeof(Node) * (word.size() + 1));
    find_best_paths(word);
    // From the end of the word to its start: pieces, and runs of unknown characters as one span.
    spans_.clear();
    for (std::size_t end = word.size(); end > 0; end = best_[end].begin) {
      const Node& node = best_[end];
      const bool unknown = model_.unknown_ && node.id == *model_.unknown_;
      if (unknown && !spans_.empty() && spans_.back().unknown) {
        spans_.back().begin = node.begin;
      } else {
        spans_.push_back({node.begin, end, node.id, unknown});
      }
    }
    for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
      if (span->unknown) {
        append_unknown(word.substr(span->begin, span->end - span->begin), ids);
      } else {
        ids.push_back(span->id);
      }
    }
  }

 private:
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();
  // The best path that ends at a byte of the word.
  struct Node {
    double score = 0.0;
    std::size_t begin = kNowhere;  // start of its last piece
    std::int32_t id = 0;           // id of its last piece
  };
  struct Span {
    std::size_t begin, end;
    std::int32_t id;
    bool unknown;
  };

  void find_best_paths(std::string_view word) {
    best_.assign(word.size() + 1, Node());
    const auto is_better = [&](const Node& node, double score) {
      return node.begin == kNowhere || score > node.score;  // of equal paths, the first one stays
    };
    for (std::size_t at = 0; at < word.size();) {
      const double score_here = best_[at].score;
      const std::size_t character = decode_code_point(word, at).bytes;
      bool has_character = false;  // the character itself is a piece
      model_.matcher_.each(word, at, [&](StringMatcher::Hit hit) {
        Node& node = best_[at + hit.length];
        const double score = model_.pieces_[static_cast<std::size_t>(hit.value)].second + score_here;
        if (is_better(node, score)) node = {score, at, hit.value};
        has_character = has_character || hit.length == character;
      });
      Node& node = best_[at + character];
      const double score = model_.unknown_score_ + score_here;
      if (!has_character && is_better(node, score)) {
        if (!model_.unknown_) {
          throw InputError(model_.where_ + ": the vocabulary has no piece for the character '" +
                           printable(word.substr(at, character)) +
                           "' and no unknown token (model.unk_id is null), so that this text cannot be encoded");
        }
        node = {score, at, *model_.unknown_};
      }
      at += character;
    }
  }

  void append_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
    if (const auto whole = model_.id_of(text)) {  // the unknown token itself, written in the text
      ids.push_back(*whole);
    } else if (!model_.bytes_ || !model_.bytes_->append(text, ids)) {
      ids.push_back(*model_.unknown_);
    }
  }

  const Unigram& model_;
  std::vector<Node> best_;   // [bytes of the word + 1]
  std::vector<Span> spans_;  // of the best path, in reverse order
};

Unigram::Unigram(const TokenizerJson& file, const std::string& where) : where_(where), pieces_(file.pieces) {
  const Json& model = json_object(file.rest, "model", where);
  double lowest = std::numeric_limits<double>::infinity();
  ids_.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    ids_[pieces_[i].first] = static_cast<std::int32_t>(i);
    lowest = std::min(lowest, pieces_[i].second);
  }
  for (const auto& [text, score] : pieces_) matcher_.add(text, ids_.at(text));
  constexpr double kUnknownPenalty = 10.0;
  unknown_score_ = lowest - kUnknownPenalty;
  if (!json_member(model, "unk_id").is_null()) {
    const std::int64_t id = json_int(model, "unk_id", where);
    if (id < 0 || id >= static_cast<std::int64_t>(pieces_.size())) {
      throw InputError(where + ": the unknown token has the id " + std::to_string(id) +
                       " (model.unk_id), expected 0 to " + std::to_string(pieces_.size() - 1) +
                       ", an index of the vocabulary");
    }
    unknown_ = static_cast<std::int32_t>(id);
  }
  if (json_bool(model, "byte_fallback", where, false)) bytes_.emplace(*this);
}

std::unique_ptr<TokenModel::Session> Unigram::start() const { return std::make_unique<Session>(*this); }

std::optional<std::int32_t> Unigram::id_of(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

const std::string* Unigram::text_of(std::int32_t id) const {
  return id >= 0 && id <= highest_id() ? &pieces_[static_cast<std::size_t>(id)].first : nullptr;
}

}  // namespace oscar
