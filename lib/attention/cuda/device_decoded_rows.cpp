#include "attention/device_decoded_rows.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "attention/cuda/device_transform.h"
#include "attention/cuda/finite_watch.h"
#include "base/cuda/launch.h"
#include "base/errors.h"
#include "cache/row_pages.h"
#include "kernels/dequantize/dequantize_pages.h"
#include "kernels/quantize/quantize_pages.h"

namespace oscar {
namespace {

at::Tensor heads_first(const at::Tensor& x) { return x.to(at::kFloat).transpose(0, 1).contiguous(); }

// Runs for complete pages of a sequence from position 0 on, page i from row 64 i on: [pages, 5] int32 as PageRun.
at::Tensor page_runs(std::int64_t tokens) {
  static_assert(sizeof(kernels::PageRun) == 20);
  const std::int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  at::Tensor runs = at::empty({pages, 5}, at::kInt);
  auto* run = reinterpret_cast<kernels::PageRun*>(runs.mutable_data_ptr<std::int32_t>());
  for (std::int64_t i = 0; i < pages; ++i) {
    run[i] = {static_cast<std::int32_t>(i * kPageTokens),
              static_cast<std::int32_t>(std::min<std::int64_t>(kPageTokens, tokens - i * kPageTokens)),
              static_cast<std::int32_t>(i), 0, static_cast<std::int32_t>(i * kPageTokens)};
  }
  return runs;
}

// Temporary pages of a sequence.
struct ScratchPages {
  PageLayout layout;
  at::Tensor runs, pages;  // [P, 5] int32; [P, Hkv, bytes]

  ScratchPages(const KvMethod& method, std::int64_t layer, std::int64_t tokens, std::int64_t kv_heads,
               at::Device device)
      : layout(page_layout(method.code(layer, Side::kKey), method.code(layer, Side::kValue))),
        runs(page_runs(tokens).to(device)),
        pages(at::empty({runs.size(0), kv_heads, layout.bytes()}, at::TensorOptions(at::kByte).device(device))) {}
};

// Writes the rows [T, Hkv, d] to pages and reads them back; `rotated` gets [T, Hkv, d] BF16, the rows before coding.
at::Tensor through_pages(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows,
                         at::Tensor& rotated) {
  const std::int64_t tokens = rows.size(0), heads = rows.size(1);
  const bool is_key = side == Side::kKey;
  const DeviceSide s = device_side(method, heads, layer, side, rows.device());
  const ScratchPages scratch(method, layer, tokens, heads, rows.device());
  rotated = at::empty(rows.sizes(), rows.options().dtype(at::kBFloat16));
  const FiniteWatch finite(layer + 1, heads, rows.device());
  kernels::QuantizePagesParams q{};
  q.rows = rows.const_data_ptr();
  q.rows_bfloat16 = rows.scalar_type() == at::kBFloat16;
  q.mean = pointer<float>(s.mean), q.matrix = pointer<float>(s.forward);
  at::Tensor phases;
  if (s.rotated_mean) {
    phases = method.rope_phases->rows(0, tokens).contiguous().to(rows.device());
    q.rope_phases = phases.const_data_ptr<float>();
  }
  q.matrix_heads = s.forward.defined() ? static_cast<std::int32_t>(s.forward.size(0)) : 1;
  q.rotated = reinterpret_cast<std::uint16_t*>(rotated.data_ptr<at::BFloat16>());
  q.runs = reinterpret_cast<const kernels::PageRun*>(scratch.runs.const_data_ptr<std::int32_t>());
  q.pages = scratch.pages.data_ptr<std::uint8_t>();
  q.clip = s.clip.const_data_ptr<float>(), q.sigma = s.sigma.const_data_ptr<float>();
  q.bad = finite.of(layer, side);
  q.layout = is_key ? scratch.layout.key : scratch.layout.value;
  q.page_bytes = scratch.layout.bytes();
  q.run_count = static_cast<std::int32_t>(scratch.runs.size(0)), q.kv_heads = static_cast<std::int32_t>(heads);
  q.encoder = kernel_encoder(is_key ? method.key_encoder : method.value_encoder);
  q.value_side = !is_key;
  check_launch(kernels::quantize_pages(q, current_stream()), "quantize_pages");
  finite.check(layer, layer);

  at::Tensor coded = at::empty(rows.sizes(), rows.options().dtype(at::kFloat));
  kernels::DequantizePagesParams d{};
  d.pages = q.pages, d.runs = q.runs, d.sigma = q.sigma;
  d.rows = coded.data_ptr();
  d.layout = q.layout, d.page_bytes = q.page_bytes;
  d.run_count = q.run_count, d.kv_heads = q.kv_heads;
  d.value_side = q.value_side;
  check_launch(kernels::dequantize_pages(d, current_stream()), "dequantize_pages");
  return coded;
}

}  // namespace

CachedRows decoded_rows_on_device(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows) {
  const c10::DeviceGuard guard(rows.device());
  if (const std::int64_t d = rows.size(2); d > 512) {
    throw EnvironmentError("the CUDA codec is built for head sizes up to 512, not for " + std::to_string(d) +
                           "; pass --device cpu");
  }
  const at::Tensor contiguous = (rows.scalar_type() == at::kBFloat16 ? rows : rows.to(at::kFloat)).contiguous();
  CachedRows cached{{}, {}, method.windows_of(side)};
  at::Tensor rotated;
  cached.coded = heads_first(through_pages(method, layer, side, contiguous, rotated));
  cached.plain = heads_first(rotated);
  return cached;
}

}  // namespace oscar
