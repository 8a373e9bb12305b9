#include "fuzz/fuzz_target.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar::fuzz {
namespace {

const char* const kByteLevel =
    R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":8,"content":"<s>","single_word":false,)"
    R"("lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"NFC"},)"
    R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{L}+|\\p{N}| ?[^\\s]+"},)"
    R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
    R"("use_regex":false}]},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,)"
    R"("trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":null,"unk_token":null,)"
    R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,)"
    R"("ignore_merges":false,"vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4,"Ġ":5,"Ġa":6,"d":7},)"
    R"("merges":[["a","b"],["ab","c"],["Ġ","a"]]}})";

const char* const kByteFallback =
    R"({"version":"1.0","added_tokens":[{"id":0,"content":"<unk>","single_word":false,"lstrip":false,"rstrip":false,)"
    R"("normalized":false,"special":true}],"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend",)"
    R"("prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"pre_tokenizer":null,)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<unk>","type_id":0}},)"
    R"({"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},)"
    R"({"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<unk>":{"id":"<unk>","ids":[0],)"
    R"("tokens":["<unk>"]}}},"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},)"
    R"("content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]},"model":{"type":"BPE","dropout":null,)"
    R"("unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{"<unk>":0,"<0x41>":1,"▁":2,"a":3,"▁a":4,)"
    R"("b":5,"ab":6},"merges":["▁ a","a b"]}})";

// The map makes "A" an "a" and drops U+0001.
const char* const kUnigram =
    R"({"version":"1.0","added_tokens":[{"id":0,"content":"<unk>","single_word":false,"lstrip":false,"rstrip":false,)"
    R"("normalized":false,"special":true}],"normalizer":{"type":"Sequence","normalizers":[{"type":"Precompiled",)"
    R"("precompiled_charsmap":")"
    "EAEAAAAIAAACAACAAAAAAAEJAAAAAACAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABBHQEAYQAA"
    R"("},{"type":"Nmt"},)"
    R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace",)"
    R"("replacement":"▁","prepend_scheme":"always","split":true},"post_processor":{"type":"RobertaProcessing",)"
    R"("sep":["</s>",2],"cls":["<s>",1],"trim_offsets":true,"add_prefix_space":true},"decoder":{"type":"Metaspace",)"
    R"("replacement":"▁","prepend_scheme":"always","split":true},"model":{"type":"Unigram","unk_id":0,)"
    R"("vocab":[["<unk>",0.0],["<s>",0.0],["</s>",0.0],["▁",-2.5],["a",-3],["b",-3.25],["▁ab",-4.5],["<0x41>",0]],)"
    R"("byte_fallback":true}})";

}  // namespace

std::vector<std::string> seeds() { return {kByteLevel, kByteFallback, kUnigram}; }

void read_input(std::string_view bytes) {
  const Tokenizer tokenizer = Tokenizer::from_json(bytes, "tokenizer.json");
  for (const char* text : {"abc ab", " a\n\xff\xc3\xa9 \xf0\x9f\x99\x82<s>A", ""}) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, true);
    tokenizer.decode(ids, false);
  }
  tokenizer.decode({0, 1, 100000, -1}, true);
}

}  // namespace oscar::fuzz
