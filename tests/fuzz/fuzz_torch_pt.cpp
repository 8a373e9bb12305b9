#include "bundle/torch_pt.h"
#include "bundle/torch_pt_pickle.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {
namespace {

// A zip archive guards its content by checksums, which mutations rarely satisfy, so the pickle is fuzzed alone, too.
constexpr std::string_view kPickleMark = "\x80\x02";

PtValue example() {
  const std::vector<float> numbers = {1, 0, 0, 1};
  const PtTensor tensor = PtTensor::own({2, 2}, numbers);
  PtDict layers = {{PtValue(0), PtValue(tensor)}, {PtValue(3), PtValue(tensor)}};
  return PtValue(PtDict{{PtValue("rotations"), PtValue(std::move(layers))},
                        {PtValue("eigenvalues"), PtValue(PtTensor::own({4}, numbers))},
                        {PtValue("note"), PtValue("text")},
                        {PtValue("list"), PtValue(PtList{PtValue(true), PtValue(2.5), PtValue()})}});
}

}  // namespace

std::vector<std::string> seeds() { return {dump_torch_pt(example(), "k_rotation"), pickle(example()).pickle}; }

void read_input(std::string_view bytes) {
  if (bytes.starts_with(kPickleMark)) {
    static const std::vector<std::byte> storage(16);  // four F32
    unpickle(
        std::as_bytes(std::span(bytes)), [](const std::string&) { return std::span<const std::byte>(storage); },
        nullptr, "fuzz.pkl");
  } else {
    parse_torch_pt(std::as_bytes(std::span(bytes)), "fuzz.pt");
  }
}

}  // namespace oscar::fuzz
