// Latent attention (MLA): python/oscar_kv/ops/latent_operators.py has the meaning of the arguments.
#include <cstring>

#include "kernels/latent/latent_codes.h"
#include "kernels/latent/latent_decode.h"
#include "kernels/latent/latent_rows.h"
#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {
namespace {

using oscar::kLatentChannels;
using oscar::kLatentRow;
using oscar::kLatentWindowBytes;
using oscar::kRopeChannels;
using oscar::kernels::NewestSide;
constexpr std::int64_t kSideBytes = oscar::kernels::kNewestSideBytes;
constexpr std::int64_t kRunNumbers = sizeof(oscar::kernels::NewRun) / sizeof(std::int32_t);

Code latent_code(const Arguments& arguments, const std::vector<std::int64_t>& numbers) {
  const Code code = code_of(arguments, numbers, "rows", true);
  if (!code.blocks || code.head_dim != kLatentChannels) {
    arguments.refuse("the code of rows is of " + std::to_string(code.head_dim) +
                     " channels or of another layout, expected blocks of 512 channels");
  }
  if (code.refined && (code.widths[0] == 0 || code.widths[3] == 0)) {
    arguments.refuse("the code of rows refines a block without bits, or with a block without bits");
  }
  return code;
}

// Pages, which may be farther apart than they are long.
std::uint8_t* pool_of(const Arguments& arguments, const Tensor& pool, const Code& code) {
  auto* pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kAny});
  if (pool.size(1) < oscar::latent_page(code.widths.data()).bytes() || pool.size(1) % 16 != 0) {
    arguments.refuse("pool has pages of " + std::to_string(pool.size(1)) + " bytes, expected a multiple of 16 from " +
                     std::to_string(oscar::latent_page(code.widths.data()).bytes()) + " on");
  }
  return pages;
}

std::uint8_t* latent_windows(const Arguments& arguments, const Tensor& windows) {
  return arguments.get<std::uint8_t>(windows, "windows", ScalarType::BFloat16, {kAny, kLatentWindowBytes / 2});
}

// BF16 rows [N, channels] with this alignment in elements.
const std::uint16_t* rows_of(const Arguments& arguments, const Tensor& rows, const char* name, std::int64_t channels,
                             std::int64_t elements) {
  if (rows.dim() != 2 || rows.size(1) != channels || rows.scalar_type() != ScalarType::BFloat16 ||
      rows.stride(1) != 1 || rows.stride(0) % elements != 0 ||
      reinterpret_cast<std::uintptr_t>(rows.data_ptr()) % (2 * static_cast<std::uintptr_t>(elements)) != 0 ||
      !rows.is_cuda()) {
    arguments.refuse(std::string(name) + " is not BFloat16 [N, " + std::to_string(channels) +
                     "] with aligned rows on a CUDA device; pass a contiguous copy");
  }
  return static_cast<const std::uint16_t*>(rows.data_ptr());
}

const std::uint16_t* terms(const Arguments& arguments, const Tensor& matrix) {
  return arguments.get<std::uint16_t>(matrix, "matrix", ScalarType::BFloat16, {2, kLatentChannels, kLatentChannels});
}

// (rows - mean) matrix.
oscar::kernels::LatentRowsParams rotation(const Arguments& arguments, const Tensor& rows,
                                          const std::optional<Tensor>& mean, const Tensor& matrix) {
  oscar::kernels::LatentRowsParams p{};
  p.x = rows_of(arguments, rows, "rows", kLatentChannels, 8), p.x_stride = rows.stride(0);
  p.before = arguments.get<float>(mean, "mean", ScalarType::Float, {kLatentChannels});
  p.matrix = terms(arguments, matrix), p.rows = arguments.int32(rows.size(0), "rows");
  return p;
}

NewestSide side_of(const Arguments& arguments, const Tensor& pool, const Tensor& sigma, const Tensor& clip,
                   const Tensor& bad, const std::vector<std::int64_t>& numbers) {
  const Code code = latent_code(arguments, numbers);
  NewestSide side{};
  side.layout = oscar::latent_page(code.widths.data()).codes, side.value_side = true, side.refined = code.refined;
  side.pages = pool_of(arguments, pool, code), side.page_bytes = arguments.int32(pool.size(1), "bytes of a page");
  side.clip = arguments.get<float>(clip, "clip", ScalarType::Float, {1});
  side.sigma = arguments.get<float>(sigma, "sigma", ScalarType::Float, {1, 4});
  side.bad = arguments.get<std::int32_t>(bad, "bad", ScalarType::Int, {2});
  return side;
}

}  // namespace

void latent_append(const Tensor& windows, const Tensor& window_table, const Tensor& lengths, const Tensor& rows,
                   const Tensor& rope, const std::optional<Tensor>& mean, const Tensor& matrix, std::int64_t sink) {
  const Arguments arguments("latent_append", rows);
  const Sequences sequences(arguments, lengths, window_table, sink);
  oscar::kernels::LatentRowsParams p = rotation(arguments, rows, mean, matrix);
  p.pe = rows_of(arguments, rope, "rope", kRopeChannels, 2), p.pe_stride = rope.stride(0);
  sequences.put(p);
  p.rows = sequences.count, p.windows = latent_windows(arguments, windows);
  if (rows.size(0) < p.rows || rope.size(0) < p.rows) arguments.refuse("there are fewer rows than sequences");
  arguments.launched(oscar::kernels::latent_rows(p, arguments.stream()), "latent_rows");
}

// On the host: writes the descriptor of a layer for flush_layers().
void describe_latent(const Tensor& side, const Tensor& pool, const Tensor& windows, const Tensor& sigma,
                     const Tensor& clip, const Tensor& bad, const std::vector<std::int64_t>& code) {
  const Arguments arguments("describe_latent", pool);
  NewestSide made = side_of(arguments, pool, sigma, clip, bad, code);
  made.windows = latent_windows(arguments, windows);
  std::memcpy(arguments.host_bytes(side, "side", {kSideBytes}), &made, sizeof made);
}

void latent_new(const Tensor& pool, const Tensor& windows, const Tensor& rows, const Tensor& rope, const Tensor& runs,
                const std::optional<Tensor>& mean, const Tensor& matrix, const Tensor& sigma, const Tensor& clip,
                const Tensor& bad, bool search, const std::vector<std::int64_t>& code) {
  const Arguments arguments("latent_new", rows);
  oscar::kernels::LatentRowsParams r = rotation(arguments, rows, mean, matrix);
  oscar::kernels::LatentCodesParams p{};
  p.side = side_of(arguments, pool, sigma, clip, bad, code), p.windows = latent_windows(arguments, windows);
  p.pe = rows_of(arguments, rope, "rope", kRopeChannels, 2), p.pe_stride = rope.stride(0);
  if (rope.size(0) < rows.size(0)) arguments.refuse("rope has fewer rows than rows has");
  p.runs = arguments.get<oscar::kernels::NewRun>(runs, "runs", ScalarType::Int, {kAny, kRunNumbers});
  p.run_count = arguments.int32(runs.size(0), "runs"), p.encoder = encoder_of(search);
  const Tensor rotated = arguments.empty({rows.size(0), kLatentChannels}, ScalarType::BFloat16);
  r.y = static_cast<std::uint16_t*>(rotated.data_ptr()), r.y_stride = p.row_stride = kLatentChannels, p.rows = r.y;
  arguments.launched(oscar::kernels::latent_rows(r, arguments.stream()), "latent_rows");
  arguments.launched(oscar::kernels::latent_codes(p, arguments.stream()), "latent_codes");
}

void latent_past(const Tensor& output, const Tensor& pool, const Tensor& table, const Tensor& windows,
                 const Tensor& window_table, const Tensor& sequence, const Tensor& firsts, const Tensor& starts,
                 const Tensor& ends, const std::optional<Tensor>& mean, const Tensor& matrix, const Tensor& sigma,
                 std::int64_t sink, const std::vector<std::int64_t>& numbers) {
  const Arguments arguments("latent_past", pool);
  const Code code = latent_code(arguments, numbers);
  const WindowTable held(arguments, window_table, kAny, sink);
  const std::int64_t requests = firsts.dim() == 1 ? firsts.size(0) : kAny;
  oscar::kernels::LatentPastParams p{};
  p.pages = pool_of(arguments, pool, code), p.page_stride = pool.size(1),
  p.windows = latent_windows(arguments, windows);
  p.page_table = arguments.get<std::int32_t>(table, "table", ScalarType::Int, {kAny, kAny});
  p.table_stride = table.size(1);
  held.put(p);
  p.sequence = arguments.get<std::int32_t>(sequence, "sequence", ScalarType::Int, {kAny});
  p.firsts = arguments.get<std::int32_t>(firsts, "firsts", ScalarType::Int, {requests});
  p.starts = arguments.get<std::int32_t>(starts, "starts", ScalarType::Int, {requests});
  p.ends = arguments.get<std::int32_t>(ends, "ends", ScalarType::Int, {requests});
  if (table.size(0) < requests || window_table.size(0) < requests) {
    arguments.refuse("table and window_table have fewer rows than there are requests");
  }
  p.sigma = arguments.get<float>(sigma, "sigma", ScalarType::Float, {1, 4});
  p.out = const_cast<std::uint16_t*>(rows_of(arguments, output, "output", kLatentRow, 8));
  p.out_stride = output.stride(0), p.rows = arguments.int32(sequence.size(0), "rows");
  if (output.size(0) < p.rows) arguments.refuse("output has fewer rows than sequence");
  std::memcpy(p.widths, code.widths.data(), sizeof p.widths), p.refined = code.refined;
  oscar::kernels::LatentRowsParams r{};
  r.x = r.y = p.out, r.x_stride = r.y_stride = p.out_stride, r.rows = p.rows;
  r.after = arguments.get<float>(mean, "mean", ScalarType::Float, {kLatentChannels});
  r.matrix = terms(arguments, matrix);
  arguments.launched(oscar::kernels::latent_past(p, arguments.stream()), "latent_past");
  arguments.launched(oscar::kernels::latent_rows(r, arguments.stream()), "latent_rows");
}

Tensor latent_decode(const Tensor& query, const Tensor& rope_query, const Tensor& pool, const Tensor& table,
                     const Tensor& windows, const Tensor& window_table, const Tensor& lengths, const Tensor& sigma,
                     const std::optional<Tensor>& after, const Tensor& workspace, double scale, std::int64_t sink,
                     std::int64_t recent, const std::vector<std::int64_t>& numbers) {
  const Arguments arguments("latent_decode", query);
  const Code code = latent_code(arguments, numbers);
  const Sequences sequences(arguments, lengths, window_table, sink);
  const std::int64_t batch = sequences.count;
  oscar::kernels::LatentDecodeParams p{};
  sequences.put(p), sequences.put_pages(arguments, table, p);
  const auto heads_of = [&](const Tensor& tensor, const char* name, std::int64_t channels, std::int64_t(&stride)[2]) {
    if (!tensor.is_cuda() || tensor.dim() != 3 || tensor.size(0) < batch || tensor.size(2) != channels ||
        tensor.scalar_type() != ScalarType::BFloat16 || tensor.stride(2) != 1 || tensor.stride(0) % 2 != 0 ||
        tensor.stride(1) % 2 != 0 || reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 4 != 0) {
      arguments.refuse(std::string(name) + " is not BFloat16 [B, H, " + std::to_string(channels) +
                       "] of these sequences with aligned heads; pass a contiguous copy");
    }
    stride[0] = tensor.stride(0), stride[1] = tensor.stride(1);
    return static_cast<const std::uint16_t*>(tensor.data_ptr());
  };
  p.q_latent = heads_of(query, "query", kLatentChannels, p.q_latent_stride);
  p.q_pe = heads_of(rope_query, "rope_query", kRopeChannels, p.q_pe_stride);
  if (rope_query.size(1) != query.size(1)) arguments.refuse("query and rope_query have different numbers of heads");
  p.pages = pool_of(arguments, pool, code), p.page_stride = pool.size(1);
  p.window_pages = latent_windows(arguments, windows);
  p.sigma = arguments.get<float>(sigma, "sigma", ScalarType::Float, {1, 4});
  std::memcpy(p.widths, code.widths.data(), sizeof p.widths), p.refined = code.refined;
  p.heads = arguments.int32(query.size(1), "heads");
  p.recent = arguments.int32(recent, "recent"), p.scale = static_cast<float>(scale);
  sequences.require_recent(arguments, p.recent);
  p.workspace = arguments.get<std::uint8_t>(workspace, "workspace", ScalarType::Byte, {kAny});
  if (static_cast<std::size_t>(workspace.size(0)) < oscar::kernels::latent_decode_workspace_bytes(p)) {
    arguments.refuse("workspace has " + std::to_string(workspace.size(0)) +
                     " bytes, expected those of "
                     "latent_workspace_bytes");
  }
  const Tensor out = arguments.empty({query.size(0), query.size(1), kLatentChannels}, ScalarType::BFloat16);
  p.out = out.data_ptr(), p.after = arguments.get<float>(after, "after", ScalarType::Float, {kLatentChannels});
  p.early = true;
  arguments.launched(oscar::kernels::latent_decode(p, arguments.stream()), "latent_decode");
  return out;
}

std::int64_t latent_workspace_bytes(const Tensor& like, std::int64_t batch, std::int64_t heads) {
  const Arguments arguments("latent_workspace_bytes", like);
  oscar::kernels::LatentDecodeParams p{};
  p.batch = arguments.int32(batch, "batch"), p.heads = arguments.int32(heads, "heads");
  return static_cast<std::int64_t>(oscar::kernels::latent_decode_workspace_bytes(p));
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("latent_append", TORCH_BOX(&latent_append));
  m.impl("describe_latent", TORCH_BOX(&describe_latent));
  m.impl("latent_new", TORCH_BOX(&latent_new));
  m.impl("latent_past", TORCH_BOX(&latent_past));
  m.impl("latent_decode", TORCH_BOX(&latent_decode));
  m.impl("latent_workspace_bytes", TORCH_BOX(&latent_workspace_bytes));
}

}  // namespace oscar_kv
