// tokenizer_config.json, special_tokens_map.json and added_tokens.json beside a tokenizer: the input is the three of
// them, one behind the other, with a byte 0x1e between; a part that is missing or empty is a file that is not there.
#include <algorithm>
#include <array>
#include <set>

#include "fuzz/fuzz_target.h"
#include "support/temp_directory.h"
#include "text/tokenizer/config_tokens.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar::fuzz {
namespace {

constexpr std::array<const char*, 3> kFiles = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
const char* const kOwn =
    R"([{"id":3,"content":"<s>","single_word":false,"lstrip":false,"rstrip":true,"normalized":false,"special":true}])";

// A directory with a tokenizer, whose other files are those of the input.
const TempDirectory& folder() {
  static const TempDirectory made;
  static const bool written = [] {
    write_file_atomic(
        made / "tokenizer.json",
        R"({"version":"1.0","normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,)"
        R"("model":{"type":"BPE","unk_token":"?","fuse_unk":true,"vocab":{"?":0,"a":1,"{":2},"merges":[]},)"
        R"("added_tokens":)" +
            std::string(kOwn) + "}");
    return true;
  }();
  (void)written;
  return made;
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      R"({"bos_token":"<s>","eos_token":{"content":"<e>","lstrip":true,"rstrip":false,"normalized":true,)"
      R"("single_word":true},"image_token":"<img>","added_tokens_decoder":{"4":{"content":"<|im_end|>","lstrip":false,)"
      R"("normalized":false,"rstrip":true,"single_word":false,"special":true},"9":{"content":"a"}},)"
      R"("extra_special_tokens":{"audio_token":"<au>"},"split_special_tokens":false})",
      R"({"additional_special_tokens":["<x>",{"content":"<y>","__type":"AddedToken"}],"pad_token":null})"
      "\x1e"
      R"({"bos_token":"<s>","additional_special_tokens":["<z>"],"mask_token":{"content":"<m>","lstrip":true}})"
      "\x1e"
      R"({"<x>":7,"<n>":5,"a":1})"};
}

void read_input(std::string_view bytes) {
  for (const char* name : kFiles) {
    const std::size_t end = std::min(bytes.find('\x1e'), bytes.size());
    if (end == 0) {
      fs::remove(folder() / name);
    } else {
      write_file_atomic(folder() / name, bytes.substr(0, end));
    }
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  const ConfigTokens tokens = read_config_tokens(folder().path(), parse_json(kOwn, "tokenizer.json"));
  for (const Json& token : tokens.added) {
    require(token.at("content").is_string(), "a token has a text");
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
      require(token.at(flag).is_boolean(), "every flag is said");
    }
  }
  std::set<std::string> names;
  for (const auto& [name, content] : tokens.named) require(names.insert(name).second, "a name stands for one token");
  const Tokenizer tokenizer = Tokenizer::from_file(folder() / "tokenizer.json");
  for (const char* text : {"a <s> a<|im_end|> {<x><img>\n", " <e> <m>a", ""}) {
    tokenizer.decode(tokenizer.encode(text, true), true);
  }
  for (const Json& token : tokens.added) {
    const auto content = token.at("content").get<std::string>();
    require(content.empty() || tokenizer.token_id(content).has_value(), "a token that was added has an id");
  }
}

}  // namespace oscar::fuzz
