// The plan of a pass: entries of windows by block.
#include "kernels/plan/assign_entries.h"
#include "oscar_kv/csrc/operators.h"

namespace oscar_kv {

void assign_entries(const Tensor& lengths, const Tensor& known, const Tensor& few, const Tensor& slots,
                    const Tensor& table, const Tensor& wanted, const Tensor& entry_of, const Tensor& block_of,
                    const Tensor& used_at, const Tensor& marked, const Tensor& blocks, const Tensor& found,
                    const Tensor& ring, const Tensor& read, const Tensor& lost, std::int64_t now,
                    std::int64_t sink_pages, std::int64_t ring_pages, std::int64_t recent, bool after, bool counts) {
  const Arguments arguments("assign_entries", lengths);
  const std::int64_t count = lengths.dim() == 1 ? lengths.size(0) : kAny, width = sink_pages + ring_pages;
  oscar::kernels::AssignEntriesParams p{};
  const auto numbers = [&](const Tensor& tensor, const char* name, std::initializer_list<std::int64_t> shape) {
    return arguments.get<std::int64_t>(tensor, name, ScalarType::Long, shape);
  };
  p.lengths = arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {count});
  p.known = numbers(known, "known", {count}), p.few = numbers(few, "few", {count});
  p.slots = numbers(slots, "slots", {count});
  p.table = arguments.get<std::int32_t>(table, "table", ScalarType::Int, {count, kAny});
  p.wanted = numbers(wanted, "wanted", {kAny, width}), p.entry_of = numbers(entry_of, "entry_of", {kAny});
  p.block_of = numbers(block_of, "block_of", {kAny});
  p.used_at = numbers(used_at, "used_at", {block_of.size(0)});
  p.marked = numbers(marked, "marked", {block_of.size(0)});
  p.blocks = numbers(blocks, "blocks", {count, width});
  p.found = arguments.get<std::int32_t>(found, "found", ScalarType::Int, {count, width});
  p.ring = arguments.get<std::int32_t>(ring, "ring", ScalarType::Int, {count, ring_pages});
  p.read = arguments.get<std::uint8_t>(read, "read", ScalarType::Bool, {count, width});
  p.lost = numbers(lost, "lost", {1}), p.now = now, p.after = after, p.counts = counts;
  p.requests = arguments.int32(count, "requests"), p.columns = arguments.int32(table.size(1), "blocks of a request");
  p.slot_count = arguments.int32(wanted.size(0) - 1, "slots");
  p.sink_pages = arguments.int32(sink_pages, "sink_pages"), p.ring_pages = arguments.int32(ring_pages, "ring_pages");
  p.recent = arguments.int32(recent, "recent"), p.block_count = arguments.int32(entry_of.size(0) - 1, "blocks");
  p.entry_count = arguments.int32(block_of.size(0) - 1, "entries");
  arguments.launched(oscar::kernels::assign_entries(p, arguments.stream()), "assign_entries");
}

}  // namespace oscar_kv
