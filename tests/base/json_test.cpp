#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <string>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json_rules.h"

namespace oscar {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& e) {
    return e.what();
  }
  return "(no InputError)";
}

TEST(Json, ReadsPlainValues) {
  const Json j = parse_json(R"({"a": 3, "b": 1e6, "c": "x", "d": null, "e": true})", "t");
  EXPECT_EQ(json_int(j, "a", "t"), 3);
  EXPECT_EQ(json_int(j, "b", "t"), 1000000);
  EXPECT_EQ(json_string(j, "c", "t"), "x");
  EXPECT_EQ(json_int(j, "d", "t", 7), 7);
  EXPECT_TRUE(json_bool(j, "e", "t", false));
}

TEST(Json, RefusesDuplicateKeysAtAnyLevel) {
  EXPECT_THAT(message_of([] { parse_json(R"({"a": {"k": 1, "k": 2}})", "f.json"); }), HasSubstr("'k' twice"));
  EXPECT_NO_THROW(parse_json(R"({"a": {"k": 1}, "b": {"k": 2}})", "f.json"));
}

TEST(Json, ReadsAsPythonDoesWhatTransformersReads) {
  const Json j =
      parse_python_json(R"({"a": 1, "n": NaN, "i": [-Infinity, Infinity], "s": "NaN \" NaN", "a": 2})", "f.json");
  EXPECT_EQ(json_int(j, "a", "f.json"), 2);
  EXPECT_EQ(json_string(j, "s", "f.json"), "NaN \" NaN");
  EXPECT_TRUE(std::isinf(j["i"][0].get<double>()));
  EXPECT_EQ(message_of([&] { json_number(j, "n", "f.json"); }), "f.json: 'n' is NaN, expected a finite number");
  EXPECT_THAT(message_of([&] { json_number(j, "n", "f.json", 1.0); }), HasSubstr("'n' is NaN"));
  EXPECT_THAT(message_of([&] { json_int(j, "n", "f.json"); }), HasSubstr("expected an integer"));
  EXPECT_THAT(message_of([] { parse_python_json("{\"a\": NaNa}", "f.json"); }), HasSubstr("f.json: is not valid JSON"));
  EXPECT_THAT(message_of([] { parse_python_json(std::string(100, '['), "f.json"); }), HasSubstr("nested deeper"));
  EXPECT_THAT(message_of([] { parse_json("{\"a\": NaN}", "f.json"); }),
              HasSubstr("found 'NaN'"));  // files of this project
}

TEST(Json, ErrorsAreOneShortLine) {
  const std::string long_token = "[\"" + std::string(100000, 'x');
  EXPECT_LT(message_of([&] { parse_json(long_token, "f.json"); }).size(), 300u);
  const std::string key = "\"a\\nb" + std::string(100000, 'x') + "\"";
  const std::string twice = message_of([&] { parse_json("{" + key + ":1," + key + ":2}", "f.json"); });
  EXPECT_LT(twice.size(), 300u);
  EXPECT_THAT(twice, HasSubstr("'a\\x0ab"));
}

TEST(Json, RefusesDeepNesting) {
  const std::string deep = std::string(100000, '[');
  EXPECT_THAT(message_of([&] { parse_json(deep, "f.json"); }), HasSubstr("nested deeper"));
  EXPECT_NO_THROW(parse_json("[\"[[[[[[[[[[[[[\"]", "f.json", 2));
}

TEST(Json, RefusesInvalidTextAndUtf8) {
  EXPECT_THAT(message_of([] { parse_json("{\"a\": ", "f.json"); }), HasSubstr("f.json"));
  EXPECT_THAT(message_of([] { parse_json("\"\xff\"", "f.json"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of([] { parse_json("", "f.json"); }), HasSubstr("not valid JSON"));
}

// In our words, with the place; foreign bytes are escaped.
TEST(Json, SaysWhatIsWrongAndWhere) {
  const auto fault = [](const std::string& text) { return message_of([&] { parse_json(text, "f"); }); };
  EXPECT_EQ(fault(""), "f: is not valid JSON: it is empty");
  EXPECT_EQ(fault(" \n"), "f: is not valid JSON: it is empty");
  EXPECT_EQ(fault("{\"a\": "), "f: is not valid JSON: it ends too early");
  EXPECT_EQ(fault("[1,"), "f: is not valid JSON: it ends too early");
  EXPECT_EQ(fault("[\"abc"), "f: is not valid JSON: it ends inside a string");
  EXPECT_EQ(fault("[1 2]"),
            "f: is not valid JSON: column 4: found '2', which cannot stand there (a comma, colon or bracket is missing "
            "or left over)");
  EXPECT_THAT(fault("{\"a\": 1,}"), HasSubstr("column 9: found '}'"));
  EXPECT_THAT(fault("{\n \"a\": [1,\n  ]}"), HasSubstr("line 3, column 3: found ']'"));
  EXPECT_THAT(fault("{'a': 1}"), HasSubstr("column 2: found '''"));
  EXPECT_THAT(fault("[None]"), HasSubstr("found 'None', which is no string in double quotes"));
  EXPECT_THAT(fault("[NaN]"), HasSubstr("found 'NaN'"));
  EXPECT_THAT(fault("[1e999]"), HasSubstr("the number '1e999' is too large"));
  EXPECT_THAT(fault("[1.]"), HasSubstr("is not written as in JSON"));
  EXPECT_THAT(fault("[\"a\nb\"]"), HasSubstr("raw control character"));
  EXPECT_THAT(fault("[\"\\q\"]"), HasSubstr("an escape that JSON does not have"));
  EXPECT_THAT(fault("[\"\\ud800\"]"), HasSubstr("half of a surrogate pair"));
  EXPECT_THAT(fault("[\"\\u12\"]"), HasSubstr("four hexadecimal digits"));
  EXPECT_THAT(fault("[\"\xff\"]"), HasSubstr("column 3: a string holds bytes that are not UTF-8"));
  EXPECT_THAT(fault("\x1b[31m"), HasSubstr("found '\\x1b'"));
}

// Members in the order of the text, repeated keys found, in linear time: 100,000 keys took minutes once.
TEST(Json, ReadsObjectsOfManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  const auto begin = std::chrono::steady_clock::now();
  const Json j = parse_json(text + "\"last\":[]}", "f.json");
  EXPECT_EQ(j.size(), 200001u);
  EXPECT_EQ(std::next(j.begin(), 199999).key(), "key199999");
  EXPECT_EQ(json_int(j, "key7", "f.json"), 7);
  EXPECT_THAT(message_of([&] { parse_json(text + "\"key123456\":0}", "f.json"); }), HasSubstr("'key123456' twice"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Json, BoundsTheNumberOfValues) {
  std::string text = "[";
  for (int i = 0; i < 20'100'000; ++i) text += "0,";
  EXPECT_THAT(message_of([&] { parse_json(text, "f.json"); }),
              HasSubstr("f.json: reading this JSON takes too much work (more than 2000 million steps)"));
}

TEST(Json, NamesWrongTypesAndMissingKeys) {
  const Json j = parse_json(R"({"a": "x", "n": 18446744073709551615, "f": 1.5})", "f.json");
  EXPECT_THAT(message_of([&] { json_int(j, "a", "f.json"); }), HasSubstr("'a' is string, expected an integer"));
  EXPECT_THAT(message_of([&] { json_int(j, "z", "f.json"); }), HasSubstr("'z' is missing"));
  EXPECT_THAT(message_of([&] { json_int(j, "n", "f.json"); }), HasSubstr("too large"));
  EXPECT_THAT(message_of([&] { json_int(j, "f", "f.json"); }), HasSubstr("expected an integer"));
}

TEST(Json, WritesNothingThatATerminalObeys) {
  const std::string text = "a\x1b[2J\x7f \xc2\x9b \xe2\x80\xae \xf3\xa0\x80\x81 \xe6\xa8\xa1";
  const std::string written = dump_json(Json{{"k", text}});
  EXPECT_EQ(written, "{\n  \"k\": \"a\\u001b[2J\\u007f \\u009b \\u202e \\udb40\\udc01 \xe6\xa8\xa1\"\n}\n");
  EXPECT_EQ(json_string(parse_json(written, "t"), "k", "t"), text);
  // Bytes that are not UTF-8, also in a key and inside lists.
  EXPECT_EQ(dump_json(Json{{"a\xff", Json::array({"b\xfe", 1})}}),
            "{\n  \"a\\\\xff\": [\n    \"b\\\\xfe\",\n    1\n  ]\n}\n");
}

TEST(Hash, KnownAnswers) {  // FIPS 180-4 examples
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Json, MembersThatAreNotThereAreNull) {
  const Json object = {{"a", 1}};
  EXPECT_EQ(json_member(object, "a"), 1);
  EXPECT_TRUE(json_member(object, "b").is_null());
  EXPECT_TRUE(json_member(Json::array({1}), "a").is_null());
  EXPECT_TRUE(json_member(Json(), "a").is_null());
}

}  // namespace
}  // namespace oscar
