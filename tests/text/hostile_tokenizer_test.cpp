// Damaged and hostile tokenizer.json files end in an InputError with one clear sentence, never in anything else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "base/errors.h"
#include "base/interrupt.h"
#include "support/paths.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// A tokenizer with the given parts put in.
std::string file(const std::string& model, const std::string& more = "") {
  return R"({"version": "1.0", "model": )" + model + (more.empty() ? "" : ", " + more) + "}";
}
const char* const kModel = R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": ["a b"]})";

std::string fault_of(const std::string& json, const std::string& text = "a b ab 1") {
  try {
    Tokenizer::from_json(json, "t.json").encode(text, true);
  } catch (const InputError& e) {
    return e.what();
  }
  return "(no InputError)";
}
std::string part_fault(const std::string& more, const std::string& text = "a b ab 1") {
  return fault_of(file(kModel, more), text);
}

TEST(HostileTokenizer, TheHealthyOneWorks) {
  const Tokenizer tokenizer = Tokenizer::from_json(file(kModel), "t.json");
  EXPECT_EQ(tokenizer.encode("abba", false), (std::vector<std::int32_t>{2, 1, 0}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 4);
}

TEST(HostileTokenizer, NotATokenizerAtAll) {
  for (const char* text :
       {"", "[]", "3", "null", "{}", "{\"model\": 3}", "{\"model\": {}}", "{", "\"x", "{\"model\":"}) {
    EXPECT_NE(fault_of(text), "(no InputError)") << text;
  }
  EXPECT_THAT(fault_of(std::string(200000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(fault_of("{\"a\":" + std::string(200000, '{')), HasSubstr("t.json"));
  EXPECT_THAT(fault_of("{\"a\": 1, \"a\": 2}"), HasSubstr("'a' twice"));
  EXPECT_THAT(fault_of("{\"model\": \"\xff\"}"), HasSubstr("not valid JSON"));
}

TEST(HostileTokenizer, OtherModelsAreNamed) {
  for (const char* type : {"WordPiece", "WordLevel"}) {
    EXPECT_THAT(fault_of(file(std::string(R"({"type": ")") + type + R"(", "vocab": {"a": 0}})")), HasSubstr(type));
  }
}

// A Unigram model with these pieces and further members.
std::string unigram(const std::string& pieces, const std::string& more = R"("unk_id": 0)") {
  return R"({"type": "Unigram", "vocab": [)" + pieces + "]" + (more.empty() ? "" : ", " + more) + "}";
}

TEST(HostileTokenizer, UnigramTakesTheBestPath) {
  const auto encode = [](const std::string& model, const std::string& text) {
    return Tokenizer::from_json(file(model), "t.json").encode(text, false);
  };
  using Ids = std::vector<std::int32_t>;
  const std::string pieces = R"(["<unk>", 0], ["a", 0.0], ["b", 0], ["ab", 2], ["abc", 5.0], ["<0x63>", 0])";
  EXPECT_EQ(encode(unigram(pieces), "abcab"), (Ids{4, 3}));
  EXPECT_EQ(encode(unigram(pieces), "accb"), (Ids{1, 0, 2}));  // a run of unknown characters is one token
  EXPECT_EQ(encode(unigram(pieces, R"("unk_id": 0, "byte_fallback": true)"), "accb"), (Ids{1, 5, 5, 2}));
  EXPECT_EQ(encode(unigram(pieces, R"("unk_id": 0, "byte_fallback": true)"), "acdb"), (Ids{1, 0, 2}));
  EXPECT_EQ(encode(unigram(R"(["a", -1], ["a", -2], ["aa", -5])"), "aa"), (Ids{1, 1}));  // of equal pieces the last
  EXPECT_EQ(encode(unigram(R"(["a", -1], ["a", -2], ["aa", -4])"), "aa"), (Ids{2}));     // of equal paths the first
  EXPECT_EQ(encode(unigram(R"(["a", -1])", ""), "aa"), (Ids{0, 0}));
}

TEST(HostileTokenizer, BadUnigramModels) {
  const auto model = [](const std::string& pieces, const std::string& more = R"("unk_id": 0)") {
    return fault_of(file(unigram(pieces, more)));
  };
  EXPECT_THAT(model(""), HasSubstr("missing or empty"));
  EXPECT_THAT(fault_of(file(R"({"type": "Unigram", "vocab": {"a": 0}})")), HasSubstr("an object, expected a list"));
  EXPECT_THAT(fault_of(file(R"({"type": "BPE", "vocab": [["a", 0]], "merges": []})")), HasSubstr("expected an object"));
  EXPECT_THAT(fault_of(file(R"({"type": "Unigram"})")), HasSubstr("missing or empty"));
  for (const char* entry : {R"("a")", "1", "null", "{}", "[]", R"(["a"])", "[1]", R"(["a", "b"])", R"(["a", null])",
                            R"(["a", true])", R"(["a", 1, 2])", R"(["a", [1]])", R"([["a", 1]])", R"(["a", {}])"}) {
    EXPECT_THAT(model(std::string(R"(["x", 1], )") + entry), HasSubstr(" of the vocabulary holds ")) << entry;
  }
  EXPECT_THAT(model(R"(["a", NaN])"), HasSubstr("not valid JSON"));
  EXPECT_THAT(model(R"(["a", 1e999])"), HasSubstr("t.json"));
  EXPECT_THAT(model(R"(["a", 1])", R"("unk_id": 1)"), HasSubstr("has the id 1 (model.unk_id), expected 0 to 0"));
  EXPECT_THAT(model(R"(["a", 1])", R"("unk_id": -1)"), HasSubstr("has the id -1"));
  EXPECT_THAT(model(R"(["a", 1])", R"("unk_id": "a")"), HasSubstr("unk_id"));
  EXPECT_THAT(model(R"(["a", 1], [" ", 1])", R"("unk_id": null)"), HasSubstr("no piece for the character 'b'"));
  // The largest scores there are; sums overflow and nothing else happens.
  EXPECT_EQ(model(R"(["a", 1.7e308], ["b", -1.7e308], ["ab", 1.7e308])"), "(no InputError)");
}

TEST(HostileTokenizer, BadCharsmaps) {
  const auto charsmap = [](const std::string& base64) {
    return part_fault(R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": ")" + base64 + "\"}");
  };
  EXPECT_THAT(charsmap(""), HasSubstr("has 0 bytes and a trie of 0"));
  EXPECT_THAT(charsmap("AA"), HasSubstr("has 1 bytes"));
  EXPECT_THAT(charsmap("A"), HasSubstr("not valid base64"));
  EXPECT_THAT(charsmap("A*AA"), HasSubstr("not valid base64"));
  EXPECT_THAT(charsmap("/////wAA"), HasSubstr("a trie of 4294967295"));
  EXPECT_THAT(charsmap("BAAAAAAAAAD/"), HasSubstr("not valid UTF-8"));
  EXPECT_EQ(charsmap("BAAAAP////8A"), "(no InputError)");  // a trie that leads out of itself finds nothing
  EXPECT_THAT(part_fault(R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": 3})"),
              HasSubstr("precompiled_charsmap"));
}

TEST(HostileTokenizer, BadVocabularies) {
  const auto vocabulary = [](const std::string& members) {
    return fault_of(file(R"({"type": "BPE", "vocab": {)" + members + R"(}, "merges": []})"));
  };
  EXPECT_THAT(vocabulary(""), HasSubstr("missing or empty"));
  EXPECT_THAT(vocabulary(R"("a": -1)"), HasSubstr("'a' is -1"));
  EXPECT_THAT(vocabulary(R"("a": 2147483647)"), HasSubstr("2147483647"));
  EXPECT_THAT(vocabulary(R"("a": 18446744073709551615)"), HasSubstr("expected an integer"));
  EXPECT_THAT(vocabulary(R"("a": 1e30)"), HasSubstr("a fraction"));
  EXPECT_THAT(vocabulary(R"("a": "0")"), HasSubstr("a string"));
  EXPECT_THAT(vocabulary(R"("a": null)"), HasSubstr("null"));
  EXPECT_THAT(vocabulary(R"("a": {"b": 1})"), HasSubstr("an object"));
  EXPECT_THAT(vocabulary(R"("a": [1])"), HasSubstr("an array"));
  EXPECT_THAT(vocabulary(R"("a": 0, "b": 0)"), HasSubstr("the id 0 to two tokens"));
  EXPECT_THAT(vocabulary(R"("a": 0, "a": 1)"), HasSubstr("'a' twice"));
}

TEST(HostileTokenizer, BadMerges) {
  const auto merges = [](const std::string& list) {
    return fault_of(file(R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": )" + list + "}"));
  };
  EXPECT_THAT(merges(R"(["a c"])"), HasSubstr("merge 0 ('a' + 'c') names 'c'"));
  EXPECT_THAT(merges(R"(["a b", ["b", "a"]])"), HasSubstr("names 'ba'"));
  for (const char* list : {R"(["ab"])", R"(["a b c"])", R"([["a"]])", R"([["a", "b", "c"]])", "[1]", "[null]", "[{}]",
                           R"([[["a"], "b"]])", R"([["a", 1]])"}) {
    EXPECT_THAT(merges(list), HasSubstr("merge 0 is")) << list;
  }
}

TEST(HostileTokenizer, ModelOptionsThatChangeTheMeaning) {
  const auto option = [](const std::string& member) {
    return fault_of(file(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [], )" + member + "}"));
  };
  EXPECT_THAT(option(R"("dropout": 0.1)"), HasSubstr("dropout"));
  EXPECT_THAT(option(R"("continuing_subword_prefix": "##")"), HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(option(R"("end_of_word_suffix": "</w>")"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(option(R"("unk_token": "<unk>")"), HasSubstr("'<unk>' is not in the vocabulary"));
  EXPECT_THAT(option(R"("byte_fallback": 1)"), HasSubstr("byte_fallback"));
}

TEST(HostileTokenizer, UnknownComponentsAreNamedWithTheSupportedOnes) {
  EXPECT_THAT(part_fault(R"("normalizer": {"type": "BertNormalizer"})"),
              AllOf(HasSubstr("the normalizer 'BertNormalizer' is not supported"), HasSubstr("NFKC")));
  EXPECT_THAT(part_fault(R"("pre_tokenizer": {"type": "UnicodeScripts"})"),
              AllOf(HasSubstr("the pre-tokenizer 'UnicodeScripts'"), HasSubstr("Metaspace")));
  EXPECT_THAT(part_fault(R"("post_processor": {"type": "OtherProcessing"})"),
              HasSubstr("post-processor 'OtherProcessing'"));
  EXPECT_THAT(part_fault(R"("decoder": {"type": "CTC"})"), HasSubstr("the decoder 'CTC'"));
  EXPECT_THAT(part_fault(R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Other"}]})"),
              HasSubstr("'Other'"));
  EXPECT_THAT(part_fault(R"("normalizer": 3)"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(part_fault(R"("pre_tokenizer": {})"), HasSubstr("'type' is missing"));
}

TEST(HostileTokenizer, BadComponents) {
  const auto split = [](const std::string& pattern, const std::string& behavior = "Isolated") {
    return part_fault(R"("pre_tokenizer": {"type": "Split", "invert": false, "behavior": ")" + behavior +
                      R"(", "pattern": )" + pattern + "}");
  };
  EXPECT_THAT(split(R"({"Regex": "(a"})"), HasSubstr("not a valid regular expression"));
  EXPECT_THAT(split(R"({"Regex": "[b-a]"})"), HasSubstr("not a valid regular expression"));
  EXPECT_THAT(split(R"({"Regex": "\\p{Nope}"})"), HasSubstr("not a valid regular expression"));
  EXPECT_THAT(split(R"({"Regex": "a", "String": "b"})", "Sideways"), HasSubstr("'Sideways'"));
  EXPECT_THAT(split(R"({"Regex": 1})"), HasSubstr("expected a string"));
  EXPECT_THAT(split("\"a\""), HasSubstr("expected an object"));
  EXPECT_THAT(part_fault(R"("pre_tokenizer": {"type": "Metaspace", "replacement": "__"})"), HasSubstr("one character"));
  EXPECT_THAT(part_fault(R"("pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "x"})"),
              HasSubstr("'x'"));
  EXPECT_THAT(part_fault(R"("pre_tokenizer": {"type": "Digits"})"), HasSubstr("'individual_digits' is missing"));
  EXPECT_THAT(part_fault(R"x("normalizer": {"type": "Replace", "pattern": {"Regex": "(a)"}, "content": "$1"})x"),
              HasSubstr("group references"));
  const auto strip = [](const std::string& members) {
    return part_fault("\"decoder\": {\"type\": \"Strip\", " + members + "}");
  };
  EXPECT_THAT(strip(R"("content": "ab", "start": 1, "stop": 0)"), HasSubstr("one character"));
  EXPECT_THAT(strip(R"("content": "a", "start": -1, "stop": 0)"), HasSubstr("counts"));
}

TEST(HostileTokenizer, BadTemplates) {
  const auto processor = [](const std::string& single, const std::string& tokens = "{}") {
    return part_fault(R"("post_processor": {"type": "TemplateProcessing", "single": )" + single +
                      R"(, "special_tokens": )" + tokens + "}");
  };
  const std::string a = R"({"Sequence": {"id": "A", "type_id": 0}})",
                    s = R"({"SpecialToken": {"id": "x", "type_id": 0}})";
  EXPECT_THAT(processor("[]"), HasSubstr("does not hold the sequence A"));
  EXPECT_THAT(processor("[" + a + ", " + a + "]"), HasSubstr("exactly once"));
  EXPECT_THAT(processor("[" + s + ", " + a + "]"), HasSubstr("does not define"));
  EXPECT_THAT(processor("[" + s + ", " + a + "]", R"({"x": {"ids": [-1]}})"), HasSubstr("bad id"));
  EXPECT_THAT(processor("[3]"), HasSubstr("neither"));
  const auto pair = [](const std::string& cls) {
    return part_fault(R"("post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": )" + cls + "}");
  };
  EXPECT_EQ(pair(R"(["<s>", 0])"), "(no InputError)");
  EXPECT_THAT(pair("[]"), HasSubstr("'cls' is not a token and its id"));
  EXPECT_THAT(pair(R"([0, "<s>"])"), HasSubstr("'cls' is not a token and its id"));
  EXPECT_THAT(pair(R"(["<s>", -1])"), HasSubstr("bad id"));
}

// A template of 100,000 entries of a token of 1,000 ids would add 100 million tokens to each text.
TEST(HostileTokenizer, TemplatesThatAddManyTokens) {
  std::string ids = "0", single = R"({"Sequence": {"id": "A", "type_id": 0}})";
  for (int i = 1; i < 1000; ++i) ids += ",0";
  for (int i = 0; i < 5; ++i) single += R"(,{"SpecialToken": {"id": "x", "type_id": 0}})";
  const std::string template_ = R"({"type": "TemplateProcessing", "single": [)" + single +
                                R"(], "pair": [], "special_tokens": {"x": {"id": "x", "ids": [)" + ids +
                                R"(], "tokens": []}}})";
  EXPECT_THAT(part_fault("\"post_processor\": " + template_), HasSubstr("adds more than 4096 tokens"));
  const std::string half = R"({"type": "BertProcessing", "cls": ["a", 0], "sep": ["a", 0]})";
  std::string many = half;
  for (int i = 0; i < 2100; ++i) many += "," + half;
  EXPECT_THAT(part_fault(R"("post_processor": {"type": "Sequence", "processors": [)" + many + "]}"),
              HasSubstr("adds more than 4096 tokens"));
}

TEST(HostileTokenizer, BadAddedTokens) {
  const auto added = [](const std::string& id, const std::string& content = "<x>", const std::string& flag = "true") {
    return R"({"id": )" + id + R"(, "content": ")" + content +
           R"(", "single_word": false, "lstrip": false, "rstrip": )" + flag +
           R"(, "normalized": false, "special": true})";
  };
  const auto tokens = [](const std::string& list) { return part_fault("\"added_tokens\": [" + list + "]"); };
  EXPECT_EQ(tokens(added("4")), "(no InputError)");
  EXPECT_THAT(tokens(added("-1")), HasSubstr("-1"));
  EXPECT_THAT(tokens(added("99999999999")), HasSubstr("99999999999"));
  // Ids with gaps, out of order or taken: those of the package tokenizers, which counts on (test_tokenizer.py).
  for (const std::string& list : {added("7"), added("1", "a"), added("4") + "," + added("4", "<y>"),
                                  added("4") + "," + added("4"), added("6") + "," + added("5", "<y>")}) {
    EXPECT_EQ(tokens(list), "(no InputError)");
  }
  EXPECT_THAT(tokens(added("4", "<x>", "1")), HasSubstr("'rstrip'"));
  EXPECT_THAT(tokens("3"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(part_fault(R"("added_tokens": {})"), HasSubstr("not an array"));
}

// Patterns that backtrack without end give up; the message says where.
TEST(HostileTokenizer, CatastrophicPatterns) {
  const std::string text(40000, 'a');
  for (const char* pattern : {"(?:a|aa)+b", "(a+)+b"}) {
    const std::string json = file(kModel, std::string(R"("pre_tokenizer": {"type": "Split", "invert": false, )") +
                                              R"("behavior": "Isolated", "pattern": {"Regex": ")" + pattern + "\"}}");
    EXPECT_THAT(fault_of(json, text), HasSubstr("the pattern gave up")) << pattern;
  }
}

// Parts that each look harmless, and together took minutes.
TEST(HostileTokenizer, WorkIsBounded) {
  const std::clock_t begin = std::clock();  // CPU time: a busy machine does not matter
  const auto many = [](const std::string& step, int count) {
    std::string steps = step;
    for (int i = 1; i < count; ++i) steps += "," + step;
    return steps;
  };
  const std::string split = R"({"type": "Split", "invert": false, "behavior": "Isolated", "pattern": {"String": "a"}})";
  EXPECT_THAT(part_fault(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" + many(split, 20000) + "]}"),
              HasSubstr("the pre-tokenizer is made of 20001 steps, supported are 100"));
  const std::string grow = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  EXPECT_THAT(part_fault(R"("normalizer": {"type": "Sequence", "normalizers": [)" + many(grow, 90) + "]}"),
              HasSubstr("t.json: encoding a text of 8 B takes too m"));
  EXPECT_THAT(part_fault(R"("normalizer": {"type": "Sequence", "normalizers": [)" + many(grow, 200) + "]}"),
              HasSubstr("the normalizer is made of 201 steps"));
  const std::string wide = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  EXPECT_THAT(
      part_fault(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" + many(wide, 90) + "]}", "\xC3\xA9"),
      HasSubstr("takes too m"));
  const std::string token =
      R"("added_tokens": [{"id": 4, "content": ")" + std::string(20000, 'a') +
      R"(", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}])";
  EXPECT_THAT(part_fault(token), HasSubstr("has 20000 bytes, supported are 512"));
  // Every place of the text begins with thousands of pieces.
  std::string nested = R"(["<unk>", 0])";
  for (int i = 1; i <= 3000; ++i) nested += R"(, [")" + std::string(static_cast<std::size_t>(i), 'a') + "\", -1]";
  EXPECT_THAT(fault_of(file(unigram(nested)), std::string(200000, 'a')), HasSubstr("takes too much work"));
  // Each word backtracks for a while and then fails, so that no single match is over the limit.
  const std::string slow = R"("pre_tokenizer": {"type": "Split", "invert": false, "behavior": "Isolated", "pattern": )"
                           R"({"Regex": "(?:a|aa)+b"}})";
  std::string words;
  for (int i = 0; i < 4000; ++i) words += std::string(27, 'a') + " ";
  EXPECT_THAT(part_fault(slow, words), AnyOf(HasSubstr("takes too much work"), HasSubstr("the pattern gave up")));
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 60.0);
}

// Texts that make simple algorithms quadratic.
// Oniguruma retries for some ten seconds in one search here, and no one can stop it. In a process of its own.
TEST(HostileTokenizerDeathTest, ASearchThatTakesLongIsInterrupted) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        install_interrupt_handler();
        const std::string text(8'000'000, 'a');
        const Regex regex("(?:a|aa){20}b", "tokenizer.json");
        std::thread([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          ::kill(::getpid(), SIGTERM);
        }).detach();
        try {
          (void)regex.split(text);
        } catch (const InputError&) {  // the limit on retries
        }
        std::_Exit(8);
      },
      // No regular expression: Oniguruma has a regcomp() of its own, which the sanitizer's regexec() cannot take.
      testing::ExitedWithCode(130), testing::HasSubstr("interrupted while a text was split"));
}

TEST(HostileTokenizer, LongTextsStayCheap) {
  const std::string normalizer = R"("normalizer": {"type": "NFC"})";
  const Tokenizer tokenizer = Tokenizer::from_json(file(kModel, normalizer), "t.json");
  std::string marks = "a";
  for (int i = 0; i < 200000; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";  // two combining classes in turn
  EXPECT_TRUE(tokenizer.encode(marks, false).size() <= 1);
  EXPECT_EQ(tokenizer.encode(std::string(1000000, 'a'), false).size(), 1000000U);
  std::string pairs;
  for (int i = 0; i < 500000; ++i) pairs += "ab";
  EXPECT_EQ(tokenizer.encode(pairs, false).size(), 500000U);
  const Tokenizer pieces = Tokenizer::from_json(file(unigram(R"(["<unk>", 0], ["ab", -1])"), normalizer), "t.json");
  EXPECT_EQ(pieces.encode(pairs, false).size(), 500000U);
  EXPECT_EQ(pieces.encode(std::string(1000000, 'c'), false).size(), 1U);
}

TEST(HostileTokenizer, AnyPrefixOfAFileIsRefused) {
  const std::string whole = read_file(fs::path(OSCAR_SOURCE_DIR) / "sample_data/tiny-qwen3/tokenizer.json");
  const std::size_t end = whole.find_last_of('}');
  for (std::size_t size = 0; size < end; size = size * 3 / 2 + 1) {
    EXPECT_NE(fault_of(whole.substr(0, size)), "(no InputError)") << size;
  }
}

}  // namespace
}  // namespace oscar
