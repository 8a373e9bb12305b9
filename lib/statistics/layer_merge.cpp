#include "statistics/shard_merge.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "statistics/layer_fields.h"

namespace oscar {
namespace {

std::vector<at::Tensor> tensors_of(const LayerParts& parts, at::Tensor LayerMoments::*field) {
  std::vector<at::Tensor> tensors;
  for (const LayerMoments* part : parts) tensors.push_back(part->*field);
  return tensors;
}

// Sum of the defined tensors: parts of short prompts have no pairs outside the windows.
at::Tensor sum_present(const std::vector<at::Tensor>& tensors) {
  at::Tensor total;
  for (const at::Tensor& t : tensors) {
    if (t.defined()) total = total.defined() ? total.add_(t) : t.clone();
  }
  return total;
}

at::Tensor picked_rows(const LayerParts& parts, const std::vector<RowSource>& rows, at::Tensor LayerMoments::*field) {
  std::vector<at::Tensor> picked;
  for (const RowSource& source : rows) {
    const at::Tensor& from = parts[source.part]->*field;
    if (from.defined()) picked.push_back(from[source.row]);
  }
  return picked.size() == rows.size() ? at::stack(picked) : at::Tensor();
}

void merge_rows(const LayerParts& parts, const std::vector<RowSource>& rows, LayerMoments& out) {
  const bool positions = std::all_of(parts.begin(), parts.end(), [](const LayerMoments* part) {
    return part->row_position.size() == part->row_priority.size();
  });
  for (const RowSource& source : rows) {
    const auto row = static_cast<std::size_t>(source.row);
    out.row_priority.push_back(parts[source.part]->row_priority[row]);
    if (positions) out.row_position.push_back(parts[source.part]->row_position[row]);
  }
  for (const RowField& field : kRowFields) out.*field.tensor = picked_rows(parts, rows, field.tensor);
}

}  // namespace

std::vector<RowSource> merged_rows(const LayerParts& parts, std::int64_t requested) {
  std::vector<RowSource> rows;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (std::int64_t r = 0; r < std::ssize(parts[p]->row_priority); ++r) rows.push_back({p, r});
  }
  const auto priority = [&](const RowSource& s) {
    return parts[s.part]->row_priority[static_cast<std::size_t>(s.row)];
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const RowSource& a, const RowSource& b) { return priority(a) < priority(b); });
  if (std::ssize(rows) > requested) rows.resize(static_cast<std::size_t>(requested));
  return rows;
}

at::Tensor sum_if_all(const std::vector<at::Tensor>& tensors) {
  const bool all = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); });
  return all ? sum_present(tensors) : at::Tensor();
}

LayerMoments merge_layer(const LayerParts& parts, const std::vector<RowSource>& rows) {
  LayerMoments out;
  for (const MomentField& field : kMomentFields) {
    // W_O^T W_O is a property of the weights, not a sum over tokens.
    const bool once = field.tensor == &LayerMoments::wo_gram;
    out.*field.tensor = once ? (parts[0]->wo_gram).clone() : sum_present(tensors_of(parts, field.tensor));
  }
  for (const MetricField& field : kFarPairFields) out.*field.tensor = sum_present(tensors_of(parts, field.tensor));
  for (const EnergyField& field : kEnergyFields) out.*field.tensor = sum_if_all(tensors_of(parts, field.tensor));
  if (!rows.empty()) merge_rows(parts, rows, out);
  return out;
}

}  // namespace oscar
