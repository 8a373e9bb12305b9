#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "support/message_of.h"
#include "support/paths.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file image: length field, header text, data bytes.
std::string image(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + header + std::string(data_bytes, '\x01');
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string refusal(const std::string& file) {
  return message_of([&] { SafetensorsFile::parse(bytes_of(file), "f.safetensors"); });
}

std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
}

TEST(Safetensors, ReadsAFileWrittenByHand) {
  const std::string header = R"({"__metadata__":{"a":"b"},"y":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
                             R"("x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}  )";
  std::string file = image(header, 11);
  const float values[2] = {1.5f, -2.0f};
  std::memcpy(file.data() + 8 + header.size(), values, sizeof values);
  const SafetensorsFile f = SafetensorsFile::parse(bytes_of(file), "f");
  EXPECT_EQ(f.metadata().at("a"), "b");
  ASSERT_EQ(f.tensors().size(), 2u);
  EXPECT_EQ(f.tensors()[0].name, "x");
  EXPECT_THAT(f.at("x").shape, ElementsAre(2, 1));
  EXPECT_EQ(f.at("x").shape_text(), "[2, 1]");
  EXPECT_EQ(f.at("x").elements(), 2);
  EXPECT_EQ(std::memcmp(f.at("x").data.data(), values, sizeof values), 0);
  EXPECT_EQ(f.at("y").dtype, DType::kU8);
  EXPECT_EQ(f.find("z"), nullptr);
  EXPECT_THAT(message_of([&] { f.at("z"); }), HasSubstr("'z' is missing"));
}

TEST(Safetensors, ScalarsEmptyTensorsAndEmptyFilesAreValid) {
  const std::string scalar = image(one_tensor("\"BF16\"", "[]", "[0,2]"), 2);
  EXPECT_EQ(SafetensorsFile::parse(bytes_of(scalar), "f").at("t").elements(), 1);
  const std::string empty = image(one_tensor("\"F64\"", "[0,5]", "[0,0]"), 0);
  EXPECT_EQ(SafetensorsFile::parse(bytes_of(empty), "f").at("t").elements(), 0);
  // The product of the other extents is irrelevant when one of them is zero.
  const std::string wide = image(one_tensor("\"F64\"", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0);
  EXPECT_EQ(SafetensorsFile::parse(bytes_of(wide), "f").at("t").elements(), 0);
  EXPECT_TRUE(SafetensorsFile::parse(bytes_of(image("{}", 0)), "f").tensors().empty());
}

TEST(Safetensors, RefusesBrokenContainers) {
  EXPECT_THAT(refusal(""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("has 7 bytes"));
  EXPECT_THAT(refusal(std::string(8, '\0')), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refusal(std::string(8, '\xff')), HasSubstr("header length is 18446744073709551615"));
  EXPECT_THAT(refusal(std::string("\x00\xe1\xf5\x05\0\0\0\0", 8)), HasSubstr("truncated"));      // 1e8
  EXPECT_THAT(refusal(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8)), HasSubstr("header length"));  // 1e8 + 1
  const std::string good = image(one_tensor("\"U8\"", "[4]", "[0,4]"), 4);
  EXPECT_EQ(refusal(good), "(no error)");
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_NE(refusal(good.substr(0, size)), "(no error)") << size;
  EXPECT_THAT(refusal(good + "x"), HasSubstr("last 1 bytes belong to no tensor"));
}

TEST(Safetensors, RefusesBrokenHeaders) {
  EXPECT_THAT(refusal(image("{\"a\":", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(image("{} x", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(image("[]", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refusal(image("{\"\xff\":1}", 0)), HasSubstr("not valid JSON in UTF-8"));
  EXPECT_THAT(refusal(image("{\"t\":3}", 0)), HasSubstr("tensor 't' is a number, expected an object"));
  EXPECT_THAT(refusal(image("{\"t\":" + std::string(100000, '['), 0)), HasSubstr("tensor 't' is an array"));
  EXPECT_THAT(refusal(image("{\"t\":{\"shape\":" + std::string(100000, '['), 0)),
              HasSubstr("has an array in its shape"));
  EXPECT_THAT(refusal(image("{\"t\":{}}", 0)), HasSubstr("lacks dtype, shape or data_offsets"));
  EXPECT_THAT(refusal(image("{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0)), HasSubstr("'dtype' twice"));
  EXPECT_THAT(refusal(image("{\"t\":{\"extra\":1}}", 0)), HasSubstr("unknown key 'extra'"));
  EXPECT_THAT(refusal(image("{\"t\\n\\u0007\":3}", 0)), HasSubstr("'t\\x0a\\x07'"));
  EXPECT_THAT(refusal(image("{\"" + std::string(5000, 'n') + "\":3}", 0)), HasSubstr("n...'"));
  const std::string t = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(refusal(image("{" + t + "," + t + "}", 1)), HasSubstr("name 't' twice"));
}

TEST(Safetensors, RefusesBrokenMetadata) {
  EXPECT_THAT(refusal(image(R"({"__metadata__":{"a":1}})", 0)),
              HasSubstr("holds a number under 'a', expected a string"));
  EXPECT_THAT(refusal(image(R"({"__metadata__":{"a":null}})", 0)), HasSubstr("null under 'a'"));
  EXPECT_THAT(refusal(image(R"({"__metadata__":{"a":{}}})", 0)), HasSubstr("__metadata__"));
  EXPECT_THAT(refusal(image(R"({"__metadata__":["a"]})", 0)), HasSubstr("__metadata__ is an array"));
  EXPECT_THAT(refusal(image(R"({"__metadata__":{"a":"1","a":"2"}})", 0)), HasSubstr("'a' twice"));
  EXPECT_THAT(refusal(image(R"({"__metadata__":{},"__metadata__":{}})", 0)), HasSubstr("'__metadata__' twice"));
}

TEST(Safetensors, RefusesBadTypesShapesAndOffsets) {
  EXPECT_THAT(refusal(image(one_tensor("\"F12\"", "[1]", "[0,1]"), 1)), HasSubstr("dtype 'F12', expected one of BOOL"));
  EXPECT_THAT(refusal(image(one_tensor("7", "[1]", "[0,1]"), 1)), HasSubstr("a number as dtype"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[-1]", "[0,1]"), 1)), HasSubstr("negative number -1"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[1.0]", "[0,1]"), 1)), HasSubstr("expected a 64-bit whole number"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[1e3]", "[0,1]"), 1)), HasSubstr("expected a 64-bit whole number"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[99999999999999999999]", "[0,1]"), 1)), HasSubstr("64-bit"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[18446744073709551615]", "[0,1]"), 1)), HasSubstr("63 bits"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0)), HasSubstr("overflows"));
  EXPECT_THAT(refusal(image(one_tensor("\"F64\"", "[2305843009213693952]", "[0,0]"), 0)), HasSubstr("overflows"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "\"4\"", "[0,4]"), 4)), HasSubstr("a string in its shape"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4]", "[0]"), 4)), HasSubstr("two data_offsets"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4]", "[0,2,4]"), 4)), HasSubstr("two data_offsets"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4]", "[-4,0]"), 4)), HasSubstr("negative"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4]", "[4,0]"), 4)), HasSubstr("does not lie within"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4]", "[0,5]"), 4)), HasSubstr("does not lie within the 4 data"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4]", "[1,5]"), 5)), HasSubstr("1 bytes before"));
  EXPECT_THAT(refusal(image(one_tensor("\"F32\"", "[4]", "[0,4]"), 4)), HasSubstr("need 16"));
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", "[4]", "[18446744073709551612,18446744073709551615]"), 4)),
              HasSubstr("does not lie within"));
  std::string rank = "[1";
  for (int i = 0; i < 40; ++i) rank += ",1";
  EXPECT_THAT(refusal(image(one_tensor("\"U8\"", rank + "]", "[0,1]"), 1)), HasSubstr("more than 32 extents"));
}

TEST(Safetensors, RefusesOverlapAndHoles) {
  const auto two = [](const std::string& second) {
    return image(
        R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":)" +
            second + "}}",
        9);
  };
  EXPECT_THAT(refusal(two("[3,7]")), HasSubstr("overlaps"));
  EXPECT_THAT(refusal(two("[0,4]")), HasSubstr("overlaps"));
  EXPECT_THAT(refusal(two("[5,9]")), HasSubstr("belong to no tensor"));
  EXPECT_THAT(refusal(two("[4,8]")), HasSubstr("last 1 bytes"));
}

TEST(Safetensors, OpenNamesTheFile) {
  const TempDirectory dir;
  write_file_atomic(dir / "broken.safetensors", "short");
  EXPECT_THAT(message_of([&] { SafetensorsFile::open(dir / "broken.safetensors"); }), HasSubstr("broken.safetensors"));
  EXPECT_THAT(message_of([&] { SafetensorsFile::open(dir / "absent.safetensors"); }), HasSubstr("cannot be opened"));
  EXPECT_THAT(message_of([&] { SafetensorsFile::open(dir.path()); }), HasSubstr("not a regular file"));
}

TEST(Safetensors, ReadsTheSampleModel) {
  const auto f = SafetensorsFile::open(fs::path(OSCAR_SOURCE_DIR) / "sample_data/tiny-qwen3/model.safetensors");
  EXPECT_EQ(f.at("model.embed_tokens.weight").dtype, DType::kBF16);
  EXPECT_THAT(f.at("model.embed_tokens.weight").shape, ElementsAre(8192, 192));
}

std::vector<TensorView> some_tensors(const std::vector<std::byte>& data) {
  const std::span<const std::byte> d(data);
  return {{"b", DType::kU8, {3}, d.first(3)},
          {"a", DType::kF32, {2, 2}, d.subspan(3, 16)},
          {"c", DType::kF64, {}, d.subspan(19, 8)},
          {"aa", DType::kBF16, {1, 0}, {}}};
}

TEST(SafetensorsWriter, RoundTripsAlignedAndIndependentOfTheOrder) {
  const TempDirectory dir;
  std::vector<std::byte> data(27);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
  std::vector<TensorView> tensors = some_tensors(data);
  write_safetensors(dir / "1", tensors, {{"k", "v \"quoted\" \u00e9"}});
  std::reverse(tensors.begin(), tensors.end());
  write_safetensors(dir / "2", tensors, {{"k", "v \"quoted\" \u00e9"}});
  EXPECT_EQ(read_file(dir / "1"), read_file(dir / "2"));

  const std::string raw = read_file(dir / "1");
  std::uint64_t length = 0;
  std::memcpy(&length, raw.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  const SafetensorsFile f = SafetensorsFile::open(dir / "1");
  EXPECT_EQ(f.metadata().at("k"), "v \"quoted\" \u00e9");
  for (const TensorView& t : tensors) {
    const TensorView& read = f.at(t.name);
    EXPECT_EQ(read.shape, t.shape);
    EXPECT_EQ(read.dtype, t.dtype);
    EXPECT_TRUE(std::equal(read.data.begin(), read.data.end(), t.data.begin(), t.data.end())) << t.name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read.data.data()) % dtype_size(t.dtype), 0u) << t.name;
  }
}

TEST(SafetensorsWriter, RefusesWhatItCouldNotRead) {
  const TempDirectory dir;
  const std::vector<std::byte> data(8);
  const auto write = [&](std::vector<TensorView> tensors) {
    return message_of([&] { write_safetensors(dir / "x", std::move(tensors), {}); });
  };
  EXPECT_THAT(write({{"a", DType::kU8, {8}, data}, {"a", DType::kU8, {8}, data}}), HasSubstr("two tensors named 'a'"));
  EXPECT_THAT(write({{"a", DType::kF32, {8}, data}}), HasSubstr("shape [8] with 8 bytes"));
  EXPECT_THAT(write({{"a", DType::kF32, {-2}, data}}), HasSubstr("shape [-2]"));
  EXPECT_THAT(write({{"__metadata__", DType::kU8, {8}, data}}), HasSubstr("__metadata__"));
  EXPECT_THAT(write({{"\xff", DType::kU8, {8}, data}}), HasSubstr("not UTF-8"));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace oscar
