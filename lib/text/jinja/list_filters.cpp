// Filters that order and reduce lists: sort, dictsort, unique, sum, min, max.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/budget.h"
#include "text/jinja/builtins.h"

namespace oscar::jinja {
namespace {

// The sort key of a value: strings ignore case unless case matters.
Value ordering_key(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(value.string())) : value;
}

struct Keyed {
  Value key, item;
};

std::vector<Keyed> keyed(const List& items, const Value& path, bool case_sensitive) {
  const bool whole = path.is_undefined() || path.is_none();
  if (path.is_string() && path.string().find(',') != std::string::npos) {
    throw TemplateError("an order by several members is not supported");
  }
  std::vector<Keyed> all;
  for (const Value& item : items) {
    all.push_back({ordering_key(whole ? item : get_path(item, path), case_sensitive), item});
  }
  return all;
}

void sort_keyed(std::vector<Keyed>& all, bool reverse) {
  Budget::spend(100 * all.size() * (1 + std::bit_width(all.size())));
  std::stable_sort(all.begin(), all.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(b.key, a.key) < 0 : compare(a.key, b.key) < 0;
  });
}

List items_of(const std::vector<Keyed>& all) {
  List items;
  for (const Keyed& one : all) items.push_back(one.item);
  return items;
}

Value sorted(const Value& subject, Arguments& arguments) {
  const bool reverse = arguments.take("reverse", false).truth();
  const bool case_sensitive = arguments.take("case_sensitive", false).truth();
  const Value path = arguments.take("attribute");
  std::vector<Keyed> all = keyed(iterate(subject), path, case_sensitive);
  sort_keyed(all, reverse);
  return items_of(all);
}

Value sorted_dict(const Value& subject, Arguments& arguments) {
  const bool case_sensitive = arguments.take("case_sensitive", false).truth();
  const std::string by = arguments.take("by", "key").text();
  const bool reverse = arguments.take("reverse", false).truth();
  if (!subject.is_dict() || (by != "key" && by != "value")) {
    throw TemplateError("dictsort needs a dictionary, and 'key' or 'value' in 'by'");
  }
  std::vector<Keyed> all;
  for (const auto& [key, value] : subject.dict()) {
    all.push_back({ordering_key(by == "key" ? key.value() : value, case_sensitive),
                   Value(List{key.value(), value}, Sequence::kTuple)});
  }
  sort_keyed(all, reverse);
  return items_of(all);
}

Value unique(const Value& subject, Arguments& arguments) {
  const bool case_sensitive = arguments.take("case_sensitive", false).truth();
  const Value path = arguments.take("attribute");
  List seen, kept;
  for (const Keyed& one : keyed(iterate(subject), path, case_sensitive)) {
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& key) { return equal(key, one.key); });
    if (known) continue;
    seen.push_back(one.key);
    kept.push_back(one.item);
  }
  return Value(std::move(kept), Sequence::kGenerator);
}

Value sum(const Value& subject, Arguments& arguments) {
  const Value path = arguments.take("attribute");
  Value total = arguments.take("start", std::int64_t{0});
  for (const Value& item : iterate(subject)) {
    total = binary("+", total, path.is_undefined() || path.is_none() ? item : get_path(item, path));
  }
  return total;
}

Value extreme(const std::string& name, const Value& subject, Arguments& arguments) {
  const bool case_sensitive = arguments.take("case_sensitive", false).truth();
  const Value path = arguments.take("attribute");
  const std::vector<Keyed> all = keyed(iterate(subject), path, case_sensitive);
  if (all.empty()) return Undefined{name};
  const Keyed* best = &all.front();
  for (const Keyed& one : all) {
    const int order = compare(one.key, best->key);
    if (name == "min" ? order < 0 : order > 0) best = &one;
  }
  return best->item;
}

}  // namespace

std::optional<Value> list_filter(const std::string& name, const Value& subject, Arguments& arguments) {
  if (name == "sort") return sorted(subject, arguments);
  if (name == "dictsort") return sorted_dict(subject, arguments);
  if (name == "unique") return unique(subject, arguments);
  if (name == "sum") return sum(subject, arguments);
  if (name == "min" || name == "max") return extreme(name, subject, arguments);
  return std::nullopt;
}

}  // namespace oscar::jinja
