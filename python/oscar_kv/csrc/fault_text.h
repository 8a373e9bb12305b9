// One sentence for a fault of a table. python/oscar_kv/ops/table_checks.py has the same sentences for the torch
// reference.
#pragma once

#include <string>

#include "kernels/check/table_rules.h"

namespace oscar_kv {

// item: what a row of the table describes: "sequence", "run" or "tile".
inline std::string fault_text(const oscar::kernels::FoundFault& fault, const std::string& item) {
  using oscar::kernels::TableFault;
  const std::string of = item + ' ' + std::to_string(fault.item), value = std::to_string(fault.value),
                    limit = std::to_string(fault.limit), place = std::to_string(fault.place);
  const std::string ids = " is " + value + ", expected 0 to " + std::to_string(fault.limit - 1);
  switch (fault.kind) {
    case TableFault::kNone:
      break;
    case TableFault::kLength:
      return "the length of " + of + " is " + value + ", expected 0 or more";
    case TableFault::kPositions:
      return of + " has positions up to " + value + ", and phases have " + limit;
    case TableFault::kPageCount:
      return of + " has codes in " + value + " pages, and its table has " + limit;
    case TableFault::kPage:
      return "page " + place + " of " + of + ids;
    case TableFault::kWindowPage:
      return "window page " + place + " of " + of + ids;
    case TableFault::kRows:
      return of + " reads " + value + " rows from " + place + " on, and there are " + limit;
    case TableFault::kSlots:
      return of + " takes " + value + " slots from " + place + " on, and a page has " + limit;
    case TableFault::kPosition:
      return "the position of " + of + " is " + value + ", expected 0 or more";
    case TableFault::kTileKind:
      return "the kind of " + of + ids;
    case TableFault::kOutRows:
      return of + " writes " + value + " rows from " + place + " on, and there are " + limit;
    case TableFault::kSharedPage:
      return of + " writes page " + value + ", which run " + place + " writes";
  }
  return "";
}

}  // namespace oscar_kv
