#include "verify/verify_work.h"

#include <ATen/ATen.h>

#include "base/formatted.h"
#include "verify/verify_phases.h"

namespace oscar {
namespace {

std::string record_name(std::size_t sequence, const std::string& row) {
  return formatted("hidden-%05zu-", sequence) + row;
}

}  // namespace

std::optional<SavedHidden::Found> SavedHidden::load(std::size_t sequence, const std::string& row) const {
  if (!keeps()) return std::nullopt;
  const Timeline::Phase loading(timeline_, verify_phase::kSaving);
  std::optional<WorkRecord> record = work_->load(record_name(sequence, row));
  if (!record) return std::nullopt;
  const std::string where = work_->file(record_name(sequence, row)).string();
  const at::Tensor hidden = record_tensor(*record, where, "hidden", decoder_.options().dtype,
                                          {std::ssize(set_.sequences[sequence]), decoder_.config().hidden});
  if (!hidden.isfinite().all().item<bool>()) damaged_run(where, "a hidden state is NaN or infinite");
  return Found{hidden.to(decoder_.options().device), std::move(*record), where};
}

void SavedHidden::save(std::size_t sequence, const std::string& row, const at::Tensor& hidden,
                       WorkRecord record) const {
  if (!keeps() || !hidden.isfinite().all().item<bool>()) return;
  const Timeline::Phase saving(timeline_, verify_phase::kSaving);
  record["hidden"] = hidden;
  work_->save(record_name(sequence, row), record);
}

void SavedHidden::erase(std::size_t sequence, const std::string& row) const {
  if (work_ != nullptr) work_->erase(record_name(sequence, row));
}

}  // namespace oscar
