#include "text/tokenizer/stages.h"

#include "base/budget.h"
#include "base/errors.h"
#include "text/tokenizer/components.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

class ByteLevelDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& pieces) const override {
    std::string bytes, decoded;
    for (const std::string& piece : pieces) {
      decoded.clear();
      bool mapped = true;
      for (std::size_t at = 0; at < piece.size() && mapped;) {
        const CodePoint c = decode_code_point(piece, at);
        at += c.bytes;
        const int byte = text_to_byte(c.value);
        mapped = byte >= 0;
        if (mapped) decoded.push_back(static_cast<char>(byte));
      }
      bytes += mapped ? decoded : piece;  // a piece with other characters (an added token) stays as it is
    }
    pieces = {replace_invalid_utf8(bytes)};
  }
};

class ByteFallbackDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& pieces) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (find_invalid_utf8(bytes) == std::string_view::npos) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");  // one U+FFFD per byte of an invalid run
      }
      bytes.clear();
    };
    for (std::string& piece : pieces) {
      const int byte = byte_of(piece);
      if (byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
      } else {
        flush();
        out.push_back(std::move(piece));
      }
    }
    flush();
    pieces = std::move(out);
  }

 private:
  static int byte_of(const std::string& piece) {  // "<0x41>" -> 0x41, -1 for anything else
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
    int value = 0;
    for (const char c : {piece[3], piece[4]}) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return -1;
      value = value * 16 + digit;
    }
    return value;
  }
};

class Fuse : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& pieces) const override {
    std::string joined;
    for (const std::string& piece : pieces) joined += piece;
    pieces = {std::move(joined)};
  }
};

class ReplaceDecoder : public TokenDecoder {
 public:
  ReplaceDecoder(const Json& description, const std::string& where)
      : pattern_(description, where), content_(json_string(description, "content", where)) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (std::string& piece : pieces) {
      std::string out;
      for (const Part& part : pattern_.split(piece)) {
        if (part.match) {
          out += content_;
          Budget::spend(20 + content_.size());
          Budget::hold(content_.size());
        } else {
          out.append(piece, part.begin, part.end - part.begin);
        }
      }
      piece = std::move(out);
    }
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class StripDecoder : public TokenDecoder {
 public:
  StripDecoder(std::string content, std::int64_t start, std::int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (std::string& piece : pieces) {
      std::string_view rest = piece;
      for (std::int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
      for (std::int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
      piece = std::string(rest);
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class MetaspaceDecoder : public TokenDecoder {
 public:
  MetaspaceDecoder(std::string mark, bool drop_first) : mark_(std::move(mark)), drop_first_(drop_first) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::string out;
      for (const Part& part : split_by_string(pieces[i], mark_)) {
        if (!part.match) {
          out.append(pieces[i], part.begin, part.end - part.begin);
        } else if (i > 0 || !drop_first_) {
          out.push_back(' ');
        }
      }
      pieces[i] = std::move(out);
    }
  }

 private:
  std::string mark_;
  bool drop_first_;
};

class SequenceDecoder : public TokenDecoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<TokenDecoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (const auto& step : steps_) step->apply(pieces);
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> steps_;
};

}  // namespace

std::unique_ptr<TokenDecoder> make_token_decoder(const Json& description, const std::string& where) {
  if (description.is_null()) return nullptr;
  const std::string type = json_string(description, "type", where);
  const std::string at = where + " " + type;
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(description, at);
  if (type == "Strip") {
    const std::string content = json_string(description, "content", at);
    const std::int64_t start = json_int(description, "start", at), stop = json_int(description, "stop", at);
    if (content.empty() || decode_code_point(content, 0).bytes != content.size() || start < 0 || stop < 0) {
      throw InputError(at + ": expected one character as 'content' and counts in 'start' and 'stop'");
    }
    return std::make_unique<StripDecoder>(content, start, stop);
  }
  if (type == "Metaspace") {
    const std::string mark = json_string(description, "replacement", at);
    const bool prefix = json_bool(description, "add_prefix_space", at, true);
    const std::string scheme = json_string(description, "prepend_scheme", at, prefix ? "always" : "never");
    return std::make_unique<MetaspaceDecoder>(mark, scheme != "never");
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<TokenDecoder>> steps;
    for (const Json& step : json_array(description, "decoders", at)) {
      if (auto made = make_token_decoder(step, at)) steps.push_back(std::move(made));
    }
    return std::make_unique<SequenceDecoder>(std::move(steps));
  }
  refuse_component(where, "decoder", type, "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and Sequence");
}

}  // namespace oscar
