#include "statistics/shard_merge.h"

#include <algorithm>
#include <set>

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {
namespace {

constexpr std::size_t kMostListed = 12;  // numbers listed in a message

const Json& part_of(const Statistics& s) { return s.metadata["parts"][0]; }
const Json& record_of(const Statistics& s) { return part_of(s)["shard"]; }
std::int64_t number_of(const Statistics& s, const char* key) { return record_of(s)[key].get<std::int64_t>(); }

[[noreturn]] void refuse(const std::string& name, const std::string& fault) { throw InputError(name + ": " + fault); }

// What both files recorded under a key: a hash, a number, a text or nothing.
std::string both(const Json& a, const Json& b) {
  const auto text = [](const Json& value) {
    return value.is_null() ? std::string("nothing") : printable(value.dump(), 60);
  };
  return text(a) + " and " + text(b);
}

void require_one_run(const Statistics& first, const std::string& first_name, const Statistics& s,
                     const std::string& name) {
  const Json &a = part_of(first), &b = part_of(s);
  const std::string of = " is of another run than " + first_name + ": ";
  const auto differs = [&](const std::string& what) { refuse(name, shard_name(s) + of + what); };
  if (s.model_fingerprint != first.model_fingerprint) differs("the models differ (fingerprint)");
  if (json_member(b["prompts"], "sha256") != json_member(a["prompts"], "sha256"))
    differs("the prompts differ (sha256)");
  if (number_of(s, "of") != number_of(first, "of")) differs(first_name + " is " + shard_name(first));
  const Json ours = json_member(a, "options"), theirs = json_member(b, "options");
  for (const Json* options : {&ours, &theirs}) {
    if (!options->is_object()) continue;
    for (const auto& item : options->items()) {
      const Json x = json_member(ours, item.key()), y = json_member(theirs, item.key());
      if (x == y) continue;
      std::string flag = printable(item.key(), 40);
      std::replace(flag.begin(), flag.end(), '_', '-');
      differs("--" + flag + " differs, " + both(y, x));
    }
  }
  if (b["prompts"] != a["prompts"]) {
    differs("the prompts are recorded differently (file names, --date or --text-hashes)");
  }
  if (json_member(b, "tool_version") != json_member(a, "tool_version")) {
    differs("the versions of oscar-collect differ, " +
            both(json_member(b, "tool_version"), json_member(a, "tool_version")));
  }
  for (const char* key : {"tokens", "sequences"}) {
    if (record_of(s)[key] != record_of(first)[key]) differs(std::string("the whole run has other ") + key);
  }
}

void require_all(const std::vector<Statistics>& shards, const std::vector<std::string>& names) {
  const std::int64_t count = number_of(shards[0], "of");
  std::set<std::int64_t> missing;
  for (std::int64_t i = 1; i <= count; ++i) missing.insert(i);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    if (missing.erase(number_of(shards[s], "index")) > 0) continue;
    refuse(names[s], "is " + shard_name(shards[s]) + ", which another file is, too: pass every shard once");
  }
  if (missing.empty()) return;
  std::string list;
  std::size_t listed = 0;
  for (const std::int64_t i : missing) {
    if (listed++ == kMostListed) break;
    list += (list.empty() ? "" : ", ") + std::to_string(i);
  }
  if (missing.size() > kMostListed) list += " and " + std::to_string(missing.size() - kMostListed) + " more";
  refuse(names[0], "is " + shard_name(shards[0]) + ", and " + (missing.size() == 1 ? "shard " : "shards ") + list +
                       (missing.size() == 1 ? " is" : " are") +
                       " not among the files: pass all shards of the run to one merge");
}

// The part that one run would have recorded, and the list of its shards.
Json whole_part(const std::vector<Statistics>& shards, std::int64_t tokens) {
  Json part = part_of(shards[0]);
  part.erase("shard");
  std::int64_t sequences = 0, longest = 0;
  Json list = Json::array();
  for (const Statistics& s : shards) {
    const std::int64_t own = part_of(s)["sequences"].get<std::int64_t>();
    sequences += own;
    longest = std::max(longest, part_of(s)["longest_sequence"].get<std::int64_t>());
    list.push_back({{"index", number_of(s, "index")}, {"tokens", s.tokens}, {"sequences", own}});
  }
  part["tokens"] = tokens;
  part["sequences"] = sequences;
  part["longest_sequence"] = longest;
  part["shards"] = std::move(list);
  return part;
}

// Refuses files that were altered; oscar-collect writes no such file.
void require_totals(const Statistics& first, const Json& part, const std::string& name) {
  for (const char* key : {"tokens", "sequences"}) {
    if (part[key] == record_of(first)[key]) continue;
    refuse(name, "says that the whole run has " + record_of(first)[key].dump() + " " + key + ", and all shards have " +
                     part[key].dump() + ": collect them again");
  }
}

}  // namespace

bool is_shard(const Statistics& s) {
  if (!s.metadata.is_object() || !s.metadata.contains("parts")) return false;
  const Json& parts = s.metadata["parts"];
  return parts.is_array() && parts.size() == 1 && parts[0].is_object() && parts[0].contains("shard");
}

std::string shard_name(const Statistics& s) {
  return "shard " + std::to_string(number_of(s, "index")) + " of " + std::to_string(number_of(s, "of"));
}

Statistics merge_shards(std::vector<Statistics> shards, std::vector<std::string> names) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (is_shard(shards[i])) continue;
    const auto shard = std::find_if(shards.begin(), shards.end(), is_shard);
    refuse(names[i], "is no shard of a run, and " + names[static_cast<std::size_t>(shard - shards.begin())] + " is " +
                         shard_name(*shard) + ": merge only the shards of one run, then their result");
  }
  for (std::size_t i = 1; i < shards.size(); ++i) require_one_run(shards[0], names[0], shards[i], names[i]);
  require_all(shards, names);
  std::sort(shards.begin(), shards.end(),
            [](const Statistics& a, const Statistics& b) { return number_of(a, "index") < number_of(b, "index"); });

  std::vector<Statistics> collected;  // without empty shards, which have no sums
  for (const Statistics& s : shards) {
    if (s.tokens > 0) collected.push_back(s);
  }
  if (collected.empty()) refuse(names[0], "and all other shards hold no tokens: collect them again");
  // Some shards may lack pairs outside the windows: sequences of one run may be that short, too.
  Statistics whole = merge_statistics(collected, {.same_prompts = true, .missing_far_pairs = true});
  const Json part = whole_part(shards, whole.tokens);
  require_totals(shards[0], part, names[0]);
  whole.metadata["parts"] = Json::array({part});
  return whole;
}

}  // namespace oscar
