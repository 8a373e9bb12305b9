#include "export/rotation_pt.h"
#include "fuzz/fuzz_target.h"
#include "torch_file/torch_pt.h"
#include "torch_file/torch_pt_pickle.h"
#include "torch_file/torch_pt_zip.h"

namespace oscar::fuzz {
namespace {

// A zip archive guards its content by checksums, which mutations rarely satisfy. Input that begins as a pickle is
// therefore put into a sound archive with two storages.
constexpr std::string_view kPickleMark = "\x80\x02";

std::string archive_of(std::string_view pickle) {
  std::string out;
  ZipWriter zip([&](std::span<const std::byte> b) { out.append(reinterpret_cast<const char*>(b.data()), b.size()); });
  zip.add("r/data.pkl", pickle);
  zip.add("r/data/0", std::string_view("0123456789abcdef"));
  zip.add("r/data/1", std::string_view("01234567"));
  zip.finish();
  return out;
}

PtValue example() {
  const PtTensor square = PtTensor::own({2, 2}, {1, 0, 0, 1}), values = PtTensor::own({2}, {1, 2});
  const PtDict layer{{"layer_id", 3}, {"rotation", square}, {"eigenvalues", values}};
  return PtDict{{"format_version", 1},
                {"objective", "qqt_r_h_pbr"},
                {"source_grouping", "layer"},
                {"layers", PtDict{{3, layer}}},
                {"calibration", PtDict{{"x", 0.5}, {"l", PtList{1, true, {}, "t", std::int64_t{1} << 40}}}}};
}

// The form torch itself writes: values stored in the memo and recalled, tuples of fixed length, a view with strides.
std::string memoized() {
  const std::string zeros(3, '\0');
  const std::string tensor = "ctorch._utils\n_rebuild_tensor_v2\nq\x01((X\x07" + zeros +
                             "storageq\x02"
                             "ctorch\nFloatStorage\nq\x03X\x01" +
                             zeros + "0q\x04X\x03" + zeros +
                             "cpuq\x05K\x04tq\x06QK\x01K\x02\x85q\x07K\x02\x85q\x08\x89"
                             "ccollections\nOrderedDict\nq\x09)Rq\x0atq\x0bRq\x0c";
  return std::string(kPickleMark) + "(" + tensor + "h\x0ch\x0a}(K\x07h\x0cJ\xff\xff\xff\xff\x88ut.";
}

std::uint64_t elements(const PtValue& value) {
  std::uint64_t n = 0;
  if (const auto* list = value.as<PtList>()) {
    for (const PtValue& item : *list) n += elements(item);
  } else if (const auto* dict = value.as<PtDict>()) {
    for (const auto& [key, item] : *dict) n += elements(item);
  } else if (const auto* tensor = value.as<PtTensor>()) {
    n = static_cast<std::uint64_t>(tensor->elements());
  }
  return n;
}

}  // namespace

std::vector<std::string> seeds() {
  return {dump_torch_pt(example(), "k_rotation"), pickle(example()).pickle, memoized()};
}

void read_input(std::string_view bytes) {
  const std::string wrapped = bytes.starts_with(kPickleMark) ? archive_of(bytes) : std::string(bytes);
  const PtValue value = parse_torch_pt(std::as_bytes(std::span(wrapped)), "fuzz.pt");
  if (elements(value) > 10000) return;  // expanded views of small storages
  // What was read can be written, which touches every element, and what was written is read as the same value.
  const std::string once = dump_torch_pt(value, "r");
  const PtValue again = parse_torch_pt(std::as_bytes(std::span(once)), "again.pt");
  require(elements(again) == elements(value), "a written value has the elements of the value read");
  require(pickle(again).pickle.size() == pickle(value).pickle.size(), "a written value is the value read");
  if (value.as<PtDict>() != nullptr && find_key(*value.as<PtDict>(), "layers") != nullptr) {
    parse_rotation_pt(value, "fuzz.pt");
  }
}

}  // namespace oscar::fuzz
