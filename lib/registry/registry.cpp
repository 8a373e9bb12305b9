#include "registry/registry.h"

#include <algorithm>

#include "base/edit_distance.h"
#include "base/errors.h"

namespace oscar {
namespace {

template <typename Predicate>
const MethodRow* first_row(Predicate predicate) {
  const std::vector<MethodRow>& rows = method_registry();
  const auto found = std::find_if(rows.begin(), rows.end(), predicate);
  return found == rows.end() ? nullptr : &*found;
}

template <typename Predicate>
std::vector<std::string> ids_of(Predicate predicate) {
  std::vector<std::string> ids;
  for (const MethodRow& row : method_registry()) {
    if (predicate(row)) ids.push_back(row.id);
  }
  return ids;
}

}  // namespace

const MethodRow* find_method(const std::string& id) {
  return first_row([&](const MethodRow& row) { return row.id == id; });
}

const MethodRow& fitted_method(const std::string& id) {
  const MethodRow* found = find_method(id);
  if (found != nullptr && found->fitted()) return *found;
  std::string known;
  const std::vector<std::string> ids = ids_of([](const MethodRow& row) { return row.fitted(); });
  for (const std::string& fitted : ids) known += (known.empty() ? "" : ", ") + fitted;
  throw UsageError("unknown method '" + id + "'" + did_you_mean(id, ids, ";") + " choose one of: " + known);
}

const MethodRow& preferred_method() {
  return *first_row([](const MethodRow& row) { return row.preferred; });
}

const MethodRow& method_with(MethodRole role) {
  return *first_row([&](const MethodRow& row) { return row.role == role; });
}

bool has_role(const std::string& id, MethodRole role) {
  const MethodRow* row = find_method(id);
  return row != nullptr && row->role == role;
}

std::vector<std::string> method_ids() {
  return ids_of([](const MethodRow& row) { return row.listed; });
}

std::vector<std::string> default_methods() {
  return ids_of([](const MethodRow& row) { return row.by_default; });
}

const MethodSpec* find_method_spec(const std::string& id) {
  const MethodRow* row = find_method(id);
  return row != nullptr && row->description ? &*row->description : nullptr;
}

std::string id_of_bundle(const std::string& bundle_method) {
  return bundle_method == kPublishedMethod ? method_with(MethodRole::kReference).id : bundle_method;
}

bool runs_bundle(const std::string& id, const std::string& bundle_method) {
  if (bundle_method == id) return true;
  return has_role(id, MethodRole::kReference) && (bundle_method == kPublishedMethod || bundle_method.starts_with(id));
}

}  // namespace oscar
