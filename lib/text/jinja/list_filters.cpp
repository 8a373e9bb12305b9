// Filters that order, group and reduce lists: sort, dictsort, groupby, batch, slice, unique, sum, min, max.
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

// The path of sort may contain several paths separated by commas; then the key is a list.
Value key_of(const Value& item, const Value& path, bool case_sensitive) {
  if (path.is_undefined() || path.is_none()) return ordering_key(item, case_sensitive);
  if (!path.is_string() || path.string().find(',') == std::string::npos) {
    return ordering_key(get_path(item, path), case_sensitive);
  }
  List keys;
  const std::string& paths = path.string();
  for (std::size_t at = 0; at <= paths.size();) {
    const std::size_t comma = std::min(paths.find(',', at), paths.size());
    keys.push_back(ordering_key(get_path(item, paths.substr(at, comma - at)), case_sensitive));
    at = comma + 1;
  }
  return keys;
}

std::vector<Keyed> keyed(const List& items, const Value& path, bool case_sensitive) {
  std::vector<Keyed> all;
  for (const Value& item : items) all.push_back({key_of(item, path, case_sensitive), item});
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

// Pairs of a key and its items, in key order.
Value grouped(const Value& subject, Arguments& arguments) {
  const Value path = arguments.take("attribute"), fallback = arguments.take("default", None{});
  const bool case_sensitive = arguments.take("case_sensitive", false).truth();
  if (path.is_undefined()) throw TemplateError("groupby needs an attribute");
  std::vector<Keyed> all = keyed(iterate(subject), path, case_sensitive);
  for (Keyed& one : all) {
    if (one.key.is_undefined() && !fallback.is_none()) one.key = ordering_key(fallback, case_sensitive);
  }
  sort_keyed(all, false);
  List groups;
  for (std::size_t at = 0; at < all.size();) {
    const Value key = all[at].key, first = get_path(all[at].item, path);
    List items;
    for (; at < all.size() && equal(all[at].key, key); ++at) items.push_back(all[at].item);
    // The displayed key keeps the case of the first item's key.
    groups.emplace_back(List{first.is_undefined() && !fallback.is_none() ? fallback : first, std::move(items)},
                        Sequence::kGroup);
  }
  return groups;
}

// Rows of `count` items; pads the last row if there is a fill value.
Value batches(const Value& subject, Arguments& arguments) {
  const Value count = arguments.take("linecount"), fill = arguments.take("fill_with", None{});
  if (!count.is_integral() || count.integer() < 1) throw TemplateError("batch needs a number of items above 0");
  List rows, row;
  for (const Value& item : iterate(subject)) {
    if (static_cast<std::int64_t>(row.size()) == count.integer()) rows.emplace_back(std::exchange(row, {}));
    row.push_back(item);
  }
  if (!row.empty() && !fill.is_none()) {
    if (count.integer() > 100000) throw TemplateError("batch with more than 100000 items is not supported");
    while (static_cast<std::int64_t>(row.size()) < count.integer()) row.push_back(fill);
  }
  if (!row.empty()) rows.emplace_back(std::move(row));
  return Value(std::move(rows), Sequence::kGenerator);
}

// `count` columns of equal length; the first ones are longer by one if the items do not divide evenly.
Value slices(const Value& subject, Arguments& arguments) {
  const Value count = arguments.take("slices"), fill = arguments.take("fill_with", None{});
  if (!count.is_integral() || count.integer() < 1 || count.integer() > 100000) {
    throw TemplateError("slice needs a number of columns from 1 to 100000");
  }
  const List items = iterate(subject);
  const auto columns = static_cast<std::size_t>(count.integer());
  const std::size_t each = items.size() / columns, longer = items.size() % columns;
  List out;
  for (std::size_t i = 0, at = 0; i < columns; ++i) {
    const std::size_t size = each + (i < longer ? 1 : 0);
    const auto first = items.begin() + static_cast<std::ptrdiff_t>(at);
    List column(first, first + static_cast<std::ptrdiff_t>(size));
    if (!fill.is_none() && i >= longer) column.push_back(fill);
    out.emplace_back(std::move(column));
    at += size;
  }
  return Value(std::move(out), Sequence::kGenerator);
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
  if (name == "groupby") return grouped(subject, arguments);
  if (name == "batch") return batches(subject, arguments);
  if (name == "slice") return slices(subject, arguments);
  if (name == "unique") return unique(subject, arguments);
  if (name == "sum") return sum(subject, arguments);
  if (name == "min" || name == "max") return extreme(name, subject, arguments);
  return std::nullopt;
}

}  // namespace oscar::jinja
