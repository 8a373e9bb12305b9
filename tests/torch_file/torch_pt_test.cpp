#include "torch_file/torch_pt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

#include "support/message_of.h"
#include "support/temp_directory.h"
#include "torch_file/crc32.h"
#include "torch_file/torch_pt_pickle.h"
#include "torch_file/torch_pt_zip.h"

namespace oscar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// An archive with this pickle and these storages.
std::string archive(const std::string& pickle, const std::vector<std::string>& storages = {}) {
  std::string out;
  ZipWriter zip([&](std::span<const std::byte> b) { out.append(reinterpret_cast<const char*>(b.data()), b.size()); });
  zip.add("r/data.pkl", pickle);
  for (std::size_t i = 0; i < storages.size(); ++i) zip.add("r/data/" + std::to_string(i), storages[i]);
  zip.finish();
  return out;
}

PtValue parse(const std::string& file) {
  static std::deque<std::string> kept;  // tensors refer to the bytes of their file
  return parse_torch_pt(bytes_of(kept.emplace_back(file)), "f.pt");
}
std::string refusal(const std::string& file) {
  return message_of([&] { parse(file); });
}
std::string pickle_refusal(const std::string& pickle, const std::vector<std::string>& storages = {}) {
  return refusal(archive("\x80\x02" + pickle, storages));
}

std::string text_op(const std::string& s) {
  std::string op = "X";
  for (int i = 0; i < 4; ++i) op += static_cast<char>(s.size() >> (8 * i) & 255);
  return op + s;
}
std::string int_op(std::int32_t n) { return "J" + std::string(reinterpret_cast<const char*>(&n), sizeof n); }
std::string tuple_op(const std::vector<std::int32_t>& items) {
  std::string op = "(";
  for (const std::int32_t n : items) op += int_op(n);
  return op + "t";
}
// A float tensor over storage "0" as torch writes it.
std::string tensor_op(std::int32_t numel, std::int32_t offset, const std::vector<std::int32_t>& size,
                      const std::vector<std::int32_t>& stride, const std::string& type = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text_op("storage") + "ctorch\n" + type + "\n" + text_op("0") +
         text_op("cpu") + int_op(numel) + "tQ" + int_op(offset) + tuple_op(size) + tuple_op(stride) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}
std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(Crc32, KnownAnswers) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xCBF43926u);  // the check value of the algorithm
  EXPECT_EQ(crc32({}), 0u);
  const std::string text = "The quick brown fox jumps over the lazy dog";
  EXPECT_EQ(crc32(bytes_of(text)), 0x414FA339u);
}

TEST(TorchPt, PlainValuesRoundTrip) {
  const std::vector<std::int64_t> integers{
      0, 1, 255, 256, 65535, 65536, -1, -300, INT32_MAX, INT32_MIN, std::int64_t{1} << 40, INT64_MAX, INT64_MIN};
  PtList list;
  for (const std::int64_t n : integers) list.emplace_back(n);
  const PtDict dict{{"n", {}},      {"t", true},     {"f", false},    {"x", -1.5},          {"i", list},
                    {3, "int key"}, {"e", PtDict{}}, {"l", PtList{}}, {"s", "\xc3\xa9 \n"}, {-7, 1e300}};
  const PtValue read = parse(dump_torch_pt(dict, "stem"));
  const auto& d = *read.as<PtDict>();
  ASSERT_EQ(d.size(), dict.size());
  EXPECT_TRUE(find_key(d, "n")->as<std::monostate>());
  EXPECT_EQ(*find_key(d, "t")->as<bool>(), true);
  EXPECT_EQ(*find_key(d, "f")->as<bool>(), false);
  EXPECT_EQ(*find_key(d, "x")->as<double>(), -1.5);
  EXPECT_EQ(*find_key(d, "s")->as<std::string>(), "\xc3\xa9 \n");
  EXPECT_TRUE(find_key(d, "e")->as<PtDict>()->empty());
  EXPECT_TRUE(find_key(d, "l")->as<PtList>()->empty());
  EXPECT_EQ(*d[5].first.as<std::int64_t>(), 3);
  EXPECT_EQ(*d[9].first.as<std::int64_t>(), -7);
  const auto& back = *find_key(d, "i")->as<PtList>();
  for (std::size_t i = 0; i < integers.size(); ++i) EXPECT_EQ(*back[i].as<std::int64_t>(), integers[i]);
}

TEST(TorchPt, TensorsRoundTripAndShareStorages) {
  const TempDirectory dir;
  const PtTensor t = PtTensor::own({2, 3}, {1, 2, 3, 4, 5, 6});
  PtTensor transposed = t;  // a view: [3, 2]
  transposed.shape = {3, 2};
  transposed.strides = {1, 3};
  const PtTensor empty = PtTensor::own({0, 4}, {});
  write_torch_pt(dir / "x.pt",
                 PtDict{{"a", t}, {"b", t}, {"c", transposed}, {"d", empty}, {"e", PtTensor::own({}, {7})}});
  const PtValue value = read_torch_pt(dir / "x.pt");
  const auto& d = *value.as<PtDict>();
  const auto tensor = [&](const char* key) { return *find_key(d, key)->as<PtTensor>(); };
  EXPECT_THAT(tensor("a").floats(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(tensor("a").data.data(), tensor("b").data.data());
  EXPECT_NE(tensor("a").data.data(), tensor("c").data.data());
  EXPECT_THAT(tensor("c").floats(), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(tensor("d").shape, ElementsAre(0, 4));
  EXPECT_THAT(tensor("e").floats(), ElementsAre(7));
  for (const char* key : {"a", "c", "e"}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor(key).data.data()) % 64, 0u) << key;
  }
  write_torch_pt(dir / "y.pt", PtDict{{"a", 1}});
  fs::create_directory(dir / "sub");
  write_torch_pt(dir / "sub" / "y.pt", PtDict{{"a", 1}});
  EXPECT_EQ(read_file(dir / "y.pt"), read_file(dir / "sub" / "y.pt"));
}

TEST(TorchPt, StridedViewsOfStorages) {
  const std::string storage = floats({0, 1, 2, 3, 4, 5, 6, 7});
  const auto view = [&](std::int32_t offset, const std::vector<std::int32_t>& size,
                        const std::vector<std::int32_t>& stride) {
    return parse(archive("\x80\x02" + tensor_op(8, offset, size, stride) + ".", {storage})).as<PtTensor>()->floats();
  };
  EXPECT_THAT(view(0, {2, 2}, {4, 2}), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(view(3, {2}, {4}), ElementsAre(3, 7));
  EXPECT_THAT(view(7, {1}, {100}), ElementsAre(7));
  EXPECT_THAT(view(1, {2, 3}, {0, 1}), ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_THAT(view(8, {0}, {1}), ElementsAre());
}

TEST(TorchPt, ElementTypes) {
  const auto read = [](const std::string& type, const std::string& bytes, std::int32_t n) {
    return *parse(archive("\x80\x02" + tensor_op(n, 0, {n}, {1}, type) + ".", {bytes})).as<PtTensor>();
  };
  // 1, -2, the largest finite, the smallest subnormal, infinity
  const std::uint16_t half[] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00, 0x8001};
  EXPECT_THAT(read("HalfStorage", {reinterpret_cast<const char*>(half), sizeof half}, 6).floats(),
              ElementsAre(1.0f, -2.0f, 65504.0f, 0x1p-24f, std::numeric_limits<float>::infinity(), -0x1p-24f));
  const std::uint16_t bfloat[] = {0x3f80, 0xc040};
  EXPECT_THAT(read("BFloat16Storage", {reinterpret_cast<const char*>(bfloat), sizeof bfloat}, 2).floats(),
              ElementsAre(1.0f, -3.0f));
  const double wide[] = {0.5, -1e10};
  EXPECT_THAT(read("DoubleStorage", {reinterpret_cast<const char*>(wide), sizeof wide}, 2).floats(),
              ElementsAre(0.5f, -1e10f));
  const PtTensor integers = read("LongStorage", std::string(16, '\1'), 2);
  EXPECT_EQ(integers.dtype, DType::kI64);
  EXPECT_THAT(message_of([&] { integers.floats(); }), HasSubstr("type I64"));
}

TEST(TorchPt, RefusesTensorsOutsideTheirStorage) {
  const std::vector<std::string> eight{floats({0, 1, 2, 3, 4, 5, 6, 7})};
  const auto refused = [&](const std::string& tensor) { return pickle_refusal(tensor + ".", eight); };
  EXPECT_EQ(refused(tensor_op(8, 0, {2, 4}, {4, 1})), "(no error)");
  EXPECT_THAT(refused(tensor_op(8, 1, {2, 4}, {4, 1})), HasSubstr("shape [2, 4] at offset 1 reaches outside"));
  EXPECT_THAT(refused(tensor_op(8, 0, {2}, {8})), HasSubstr("reaches outside"));
  EXPECT_THAT(refused(tensor_op(8, -1, {2}, {1})), HasSubstr("reaches outside"));
  EXPECT_THAT(refused(tensor_op(8, 9, {0}, {1})), HasSubstr("reaches outside"));
  EXPECT_THAT(refused(tensor_op(8, 0, {-2}, {1})), HasSubstr("negative"));
  EXPECT_THAT(refused(tensor_op(8, 7, {8}, {-1})), HasSubstr("negative"));
  EXPECT_THAT(refused(tensor_op(8, 0, {2, 4}, {1})), HasSubstr("strides of another length"));
  EXPECT_THAT(refused(tensor_op(8, 0, {INT32_MAX, INT32_MAX, INT32_MAX}, {0, 0, 0})), HasSubstr("larger than 4.0 GiB"));
  EXPECT_THAT(refused(tensor_op(8, 0, std::vector<std::int32_t>(40, 1), std::vector<std::int32_t>(40, 1))),
              HasSubstr("more than 32 dimensions"));
  EXPECT_THAT(refused(tensor_op(9, 0, {2}, {1})), HasSubstr("has 32 bytes, but 9 elements of F32"));
  EXPECT_THAT(refused(tensor_op(8, 0, {2}, {1}, "DoubleStorage")), HasSubstr("8 elements of F64"));
  EXPECT_THAT(pickle_refusal(tensor_op(8, 0, {2}, {1}) + "."), HasSubstr("'r/data/0' is missing"));
}

TEST(TorchPt, RunsNoCode) {
  for (const char* name : {"os\nsystem", "builtins\neval", "torch._utils\n_rebuild_tensor_v3", "torch\nload",
                           "collections\nCounter", "__builtin__\nexec", "torch.storage\nUntypedStorage", "\n"}) {
    EXPECT_THAT(pickle_refusal(std::string("c") + name + "\n."), HasSubstr("which is not data")) << name;
  }
  for (const char* op : {"i", "o", "\x81", "\x82", "\x92", "\x93", "P", "B", "C", "T", "U", "F", "I",
                         "L", "S", "V",    "\x8c", "\x94", "\x95", "0", "1", "2", "d", "l", "g", "p"}) {
    EXPECT_THAT(pickle_refusal(std::string("N") + op + "1\n."), HasSubstr("uses the operation")) << op;
  }
  EXPECT_THAT(pickle_refusal("ccollections\nOrderedDict\n."), HasSubstr("holds a class"));
  EXPECT_THAT(pickle_refusal("ccollections\nOrderedDict\n(K\x01tR."), HasSubstr("OrderedDict from arguments"));
  EXPECT_THAT(pickle_refusal("N}b."), HasSubstr("state of an object"));
  EXPECT_EQ(pickle_refusal("ccollections\nOrderedDict\n)R}b."), "(no error)");
}

TEST(TorchPt, RefusesDamagedPickles) {
  const std::string good = tensor_op(2, 0, {2}, {1}) + ".";
  EXPECT_EQ(pickle_refusal(good, {floats({1, 2})}), "(no error)");
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(pickle_refusal(good.substr(0, size), {floats({1, 2})}), HasSubstr("f.pt: ")) << size;
  }
  EXPECT_THAT(pickle_refusal("NN."), HasSubstr("left over"));
  EXPECT_THAT(pickle_refusal("N(."), HasSubstr("a value is missing"));
  EXPECT_THAT(pickle_refusal("(N."), HasSubstr("left over"));
  EXPECT_THAT(pickle_refusal("."), HasSubstr("a value is missing"));
  EXPECT_THAT(pickle_refusal("(."), HasSubstr("a value is missing"));
  EXPECT_THAT(pickle_refusal("t."), HasSubstr("a mark is missing"));
  EXPECT_THAT(pickle_refusal("h\x05."), HasSubstr("recalls a value"));
  EXPECT_THAT(pickle_refusal("Ne."), HasSubstr("a mark is missing"));
  EXPECT_THAT(pickle_refusal("N(Ne."), HasSubstr("expected a list"));
  EXPECT_THAT(pickle_refusal("}(Nu."), HasSubstr("key without a value"));
  EXPECT_THAT(pickle_refusal("}(NNu."), HasSubstr("has None as a key"));
  EXPECT_THAT(pickle_refusal("}(K\x01NK\x01Nu."), HasSubstr("one key twice"));
  EXPECT_THAT(pickle_refusal(text_op("\xff") + "."), HasSubstr("not UTF-8"));
  EXPECT_THAT(pickle_refusal("X\xff\xff\xff\xff"
                             "a."),
              HasSubstr("ends early"));
  EXPECT_THAT(pickle_refusal("\x8a\x09"
                             "123456789."),
              HasSubstr("beyond 64 bits"));
  EXPECT_THAT(refusal(archive("\x80\x04N.")), HasSubstr("protocol is not 2"));
  EXPECT_THAT(pickle_refusal("Q."), HasSubstr("a value is missing"));
  EXPECT_THAT(pickle_refusal("NQ."), HasSubstr("expected a storage"));
  EXPECT_THAT(pickle_refusal("N)R."), HasSubstr("expected a known function"));
}

TEST(TorchPt, RefusesCyclesAndBlowUps) {
  EXPECT_THAT(pickle_refusal("]q\x01h\x01"
                             "a."),
              HasSubstr("nested deeper"));  // a list inside itself
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "(";
  EXPECT_THAT(pickle_refusal(deep + "N" + std::string(100000, 't') + "."), HasSubstr("nested deeper"));
  std::string doubling = "(]q\x01";  // each list holds the one before twice: 2^40 values
  for (int i = 0; i < 40; ++i)
    doubling +=
        "](h\x01h\x01"
        "eq\x01";
  EXPECT_THAT(pickle_refusal(doubling + "t."), HasSubstr("more than 2000000 values"));
  std::string echoes = "(" + text_op(std::string(1 << 20, 'a')) + "q\x01";  // 1 MiB of text, 100 times
  for (int i = 0; i < 100; ++i) echoes += "h\x01";
  EXPECT_THAT(pickle_refusal(echoes + "t."), HasSubstr("more than 64.0 MiB of text"));
  std::string many;
  for (int i = 0; i < 2'000'001; ++i) many += "N";
  EXPECT_THAT(pickle_refusal(many + "."), HasSubstr("more than 2000000 values"));
}

TEST(TorchPtZip, ReadsTorchStyleRoots) {
  std::string out;
  ZipWriter zip([&](std::span<const std::byte> b) { out.append(reinterpret_cast<const char*>(b.data()), b.size()); });
  zip.add("another name/data.pkl", "\x80\x02K\x07.");
  zip.finish();
  EXPECT_EQ(*parse(out).as<std::int64_t>(), 7);
}

TEST(TorchPtZip, RefusesDamagedArchives) {
  const std::string good = archive("\x80\x02" + tensor_op(2, 0, {2}, {1}) + ".", {floats({1, 2})});
  EXPECT_EQ(refusal(good), "(no error)");
  EXPECT_THAT(refusal(""), HasSubstr("no torch.save file"));
  EXPECT_THAT(refusal("PK"), HasSubstr("no torch.save file"));
  EXPECT_THAT(refusal("\x80\x02\x8a\x0al\xfc"), HasSubstr("before version 1.6"));
  EXPECT_THAT(refusal(std::string(1000, 'P')), HasSubstr("no torch.save file"));
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(refusal(good.substr(0, size)), "(no error)") << size;
  }
  EXPECT_THAT(refusal(good.substr(0, good.size() / 2)), HasSubstr("truncated"));

  // One flipped bit anywhere either is refused or stands in a field that no reader needs.
  int accepted = 0;
  for (std::size_t i = 0; i < good.size() * 8; ++i) {
    std::string bad = good;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ 1 << i % 8);
    accepted += refusal(bad) == "(no error)" ? 1 : 0;
  }
  EXPECT_LT(accepted, static_cast<int>(good.size() * 8) * 7 / 10);

  std::string payload = good;
  payload[payload.find(floats({2}))] ^= 1;
  EXPECT_THAT(refusal(payload), HasSubstr("checksum differs"));
  std::string compressed = good;
  compressed[compressed.rfind("PK\x01\x02") + 10] = 8;
  EXPECT_THAT(refusal(compressed), HasSubstr("compressed or encrypted"));
  std::string outside = good;
  outside[outside.rfind("PK\x01\x02") + 45] = 0x7f;
  EXPECT_THAT(refusal(outside), HasSubstr("outside the file"));
}

// 2,000 entries over the same 32 MiB had their checksums computed 2,000 times.
TEST(TorchPtZip, RefusesOverlappingEntries) {
  std::string file;
  ZipWriter zip([&](std::span<const std::byte> b) { file.append(reinterpret_cast<const char*>(b.data()), b.size()); });
  zip.add("r/data/0", std::string_view("0123456789"));
  zip.add("r/data/1", std::string_view("0123456789"));
  zip.finish();
  // The first entry's size in the central directory now reaches into the second one.
  const std::size_t central = file.find("PK\x01\x02");
  for (const std::size_t field : {20, 24}) file[central + field] = 120;
  try {
    const ZipReader reader(std::as_bytes(std::span(file)), "r.pt");
    ADD_FAILURE() << "overlapping entries were accepted";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "r.pt: two entries of the zip directory overlap; it is damaged");
  }
}

TEST(TorchPtZip, RefusesWrongContents) {
  std::string two, none, big;
  const auto sink = [](std::string* out) {
    return [out](std::span<const std::byte> b) { out->append(reinterpret_cast<const char*>(b.data()), b.size()); };
  };
  ZipWriter a(sink(&two));
  a.add("x/data.pkl", "\x80\x02N.");
  a.add("y/data.pkl", "\x80\x02N.");
  a.finish();
  EXPECT_THAT(refusal(two), HasSubstr("2 entries named data.pkl"));
  ZipWriter b(sink(&none));
  b.add("x/model.json", "{}");
  b.finish();
  EXPECT_THAT(refusal(none), HasSubstr("0 entries named data.pkl"));
  ZipWriter c(sink(&big));
  c.add("x/data.pkl", "\x80\x02N.");
  c.add("x/byteorder", "big");
  c.finish();
  EXPECT_THAT(refusal(big), HasSubstr("big-endian"));
  std::string twice;
  ZipWriter d(sink(&twice));
  d.add("x/data.pkl", "\x80\x02N.");
  d.add("x/data.pkl", "\x80\x02N.");
  d.finish();
  EXPECT_THAT(refusal(twice), HasSubstr("is there twice"));
}

TEST(TorchPtWriter, RefusesWhatTorchCouldNotRead) {
  EXPECT_THAT(message_of([] { dump_torch_pt("\xff", "s"); }), HasSubstr("not UTF-8"));
  EXPECT_THAT(message_of([] { dump_torch_pt(PtDict{{1.5, 1}}, "s"); }), HasSubstr("a number as a key"));
  EXPECT_THAT(message_of([] { dump_torch_pt(1, ""); }), HasSubstr("cannot be named"));
  EXPECT_THAT(message_of([] { PtTensor::own({2, 2}, {1, 2, 3}); }), HasSubstr("cannot have 12 bytes"));
  EXPECT_THAT(message_of([] { dump_torch_pt(PtTensor::own(DType::kF8E4M3, {1}, {std::byte{0}}), "s"); }),
              HasSubstr("type F8_E4M3"));
}

}  // namespace
}  // namespace oscar
