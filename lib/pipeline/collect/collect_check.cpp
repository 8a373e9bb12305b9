#include "pipeline/collect/collect_run.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <vector>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/formatted.h"
#include "base/json.h"
#include "model/decoder.h"

namespace oscar {
namespace {

// Two stacks in BF16 round differently, which may swap tokens with nearly equal likelihood.
constexpr double kMargin = 0.5;
constexpr std::int64_t kMostIds = 4096;

struct Reference {
  std::vector<std::int32_t> ids, top;
};

std::vector<std::int32_t> read_ids(const Json& object, const char* key, std::int64_t vocabulary,
                                   const std::string& where) {
  std::vector<std::int32_t> ids;
  for (const Json& id : json_array(object, key, where)) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(vocabulary);
    if (!fits) {
      throw InputError(where + ": '" + key + "' holds " + id.dump().substr(0, 40) + ", expected tokens of 0 to " +
                       std::to_string(vocabulary - 1));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

// The index of the largest number of each row.
std::vector<std::int32_t> top_of(const Json& rows, std::int64_t vocabulary, const std::string& where) {
  std::vector<std::int32_t> top;
  for (const Json& row : rows) {
    if (!row.is_array() || row.empty() || std::ssize(row) > vocabulary) {
      throw InputError(where + ": a row of 'logits' is no list of at most " + std::to_string(vocabulary) + " numbers");
    }
    std::size_t best = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_number())
        throw InputError(where + ": 'logits' holds " + row[i].type_name() + ", expected numbers");
      if (row[i].get<double>() > row[best].get<double>()) best = i;
    }
    top.push_back(static_cast<std::int32_t>(best));
  }
  return top;
}

Reference read_reference(const fs::path& file, std::int64_t vocabulary) {
  const std::string where = file.string();
  const Json json = read_json(file);
  Reference reference;
  reference.ids = read_ids(json, "ids", vocabulary, where);
  const bool has_top = !json_member(json, "top").is_null();
  reference.top =
      has_top ? read_ids(json, "top", vocabulary, where) : top_of(json_array(json, "logits", where), vocabulary, where);
  if (reference.ids.empty() || std::ssize(reference.ids) > kMostIds || reference.top.size() != reference.ids.size()) {
    throw InputError(where + ": has " + std::to_string(reference.ids.size()) + " ids and " +
                     std::to_string(reference.top.size()) + " predictions, expected as many, 1 to " +
                     std::to_string(kMostIds));
  }
  return reference;
}

}  // namespace

std::string check_against(const fs::path& file, const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device) {
  const Reference reference = read_reference(file, checkpoint.config().vocabulary);
  const c10::InferenceMode no_gradients;
  Decoder decoder(checkpoint, {.dtype = dtype, .device = device, .stream_layers = true});
  const auto count = std::ssize(reference.ids);
  FullAttention attention;
  const SequenceBatch batch{{0}, {count}, {0}};
  const at::Tensor logits = decoder.logits(decoder.forward(reference.ids, batch, attention)).to(at::kCPU);
  std::int64_t same = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const at::Tensor row = logits[i];
    const std::int32_t theirs = reference.top[static_cast<std::size_t>(i)];
    const auto ours = row.argmax().item<std::int64_t>();
    same += ours == theirs ? 1 : 0;
    const double behind = row[ours].item<double>() - row[theirs].item<double>();
    if (behind <= kMargin) continue;
    throw InputError(file.string() + ": after token " + std::to_string(i) + " the other stack predicts " +
                     std::to_string(theirs) + ", and this checkpoint as it is read here " + std::to_string(ours) +
                     ", by " + formatted("%.2f", behind) + " (" + formatted("%.2f", kMargin) +
                     " is allowed): one of the two reads another model, or reads it wrongly; statistics would not be "
                     "those of what you serve");
  }
  return "checked    " + std::to_string(same) + " of " + std::to_string(count) + " top tokens are those of " +
         utf8_text(file.filename().string()) + ", the others within " + formatted("%.2f", kMargin);
}

}  // namespace oscar
