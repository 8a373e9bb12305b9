#include "tests/bench/decode_step/step_model.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/append/append_tokens.h"
#include "kernels/common/fragment_pages.h"
#include "kernels/decode/decode_attention.h"
#include "kernels/quantize/newest_tokens.h"
#include "model/rope.h"

namespace oscar::bench {
namespace {

const at::Device kGpu{at::kCUDA, 0};
const at::TensorOptions kBf16 = at::TensorOptions(at::kBFloat16).device(kGpu);
const at::TensorOptions kInt = at::TensorOptions(at::kInt).device(kGpu);
const at::TensorOptions kByte = at::TensorOptions(at::kByte).device(kGpu);
const at::TensorOptions kFloat = at::TensorOptions(at::kFloat).device(kGpu);

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

Bf16* bf16(const at::Tensor& x) { return static_cast<Bf16*>(x.data_ptr()); }
const std::uint16_t* bits(const at::Tensor& x) { return static_cast<const std::uint16_t*>(x.const_data_ptr()); }

}  // namespace

std::string to_string(CacheKind kind) {
  return kind == CacheKind::kInt2 ? "int2" : kind == CacheKind::kBf16Flash ? "bf16, SDPA flash" : "bf16, SDPA cuDNN";
}

DecodeStep::DecodeStep(const StepWeights& weights, CacheKind kind, std::int64_t batch, std::int64_t context,
                       const CacheWindows& windows)
    : weights_(weights),
      config_(weights.config),
      kind_(kind),
      int2_(kind == CacheKind::kInt2),
      batch_(batch),
      context_(context),
      length_(context),
      windows_(windows) {
  const ModelConfig& c = config_;
  const std::int64_t d = c.head_dim;
  lengths_ = at::full({batch}, context, kInt), leaving_ = lengths_ - windows.recent;
  if (int2_) {
    sink_pages_ = window_pages_for(windows.sink), ring_pages_ = ring_pages_of(windows);
    max_pages_ = std::max<std::int64_t>(window_pages_for(windows.quantized_end(context) - windows.sink), 1);
    page_bytes_ = kernels::CodePage{static_cast<int>(d)}.bytes();
    window_bytes_ = kernels::window_page_bytes(static_cast<int>(d));
    pages_ = at::zeros({c.layers, batch * max_pages_, c.kv_heads, page_bytes_}, kByte);
    window_pages_ = at::zeros({c.layers, batch * (sink_pages_ + ring_pages_), c.kv_heads, window_bytes_}, kByte);
    page_table_ = at::randperm(batch * max_pages_, at::kLong).to(kGpu, at::kInt).view({batch, max_pages_});
    window_table_ = at::arange(batch * (sink_pages_ + ring_pages_), kInt).view({batch, -1});
    clip_ = at::full({c.layers, c.kv_heads}, 0.95f, kFloat);
    bad_ = at::full({2, c.layers}, INT_MAX, kInt);
    sides_ = described_sides();
    const std::size_t bytes = kernels::decode_attention_workspace_bytes(
        static_cast<int>(d), static_cast<int>(c.gqa_group()), static_cast<int>(batch), static_cast<int>(c.kv_heads));
    workspace_ = at::zeros({static_cast<std::int64_t>(bytes)}, kByte);
  } else {
    keys_ = at::empty({c.layers, batch, c.kv_heads, context, d}, kBf16);
    values_ = at::empty_like(keys_);
  }
  best_ = at::empty({batch}, at::TensorOptions(at::kLong).device(kGpu));
  force_tokens(std::vector<std::int32_t>(static_cast<std::size_t>(batch), 1));
  tokens_ = at::zeros({batch}, kInt);
  hidden_ = at::zeros({batch, c.hidden}, kBf16);
  normed_ = at::empty_like(hidden_);
  qkv_ = at::empty({batch, c.query_heads + 2 * c.kv_heads, d}, kBf16);
  query_ = at::empty({batch, c.query_heads, d}, kBf16), attended_ = at::empty_like(query_);
  gate_up_ = at::empty({batch, 2 * c.intermediate}, kBf16), gated_ = at::empty({batch, c.intermediate}, kBf16);
  if (batch > 1) logits_ = at::empty({batch, c.vocabulary}, kBf16);
}

void DecodeStep::fill_random() {
  if (int2_) {
    check(fill_pages(pages_.data_ptr<std::uint8_t>(), pages_.numel() / page_bytes_, static_cast<int>(config_.head_dim),
                     stream()),
          "fill_pages");
    window_pages_.view(at::kBFloat16).normal_();
  } else {
    for (std::int64_t l = 0; l < config_.layers; ++l) keys_[l].normal_(), values_[l].normal_();
  }
}

void DecodeStep::set_length(std::int64_t tokens) {
  length_ = tokens;
  lengths_.fill_(tokens), leaving_.fill_(tokens - windows_.recent);
}

void DecodeStep::force_tokens(const std::vector<std::int32_t>& tokens) {
  std::vector<std::int64_t> packed;
  for (const std::int32_t t : tokens) packed.push_back(static_cast<std::int64_t>(packed_token(t)));
  best_.copy_(at::tensor(packed, at::kLong));
}

std::vector<std::int32_t> DecodeStep::tokens() const {
  const at::Tensor t = tokens_.to(at::kCPU);
  return {t.const_data_ptr<std::int32_t>(), t.const_data_ptr<std::int32_t>() + t.numel()};
}

std::uint64_t DecodeStep::allocated_bytes() const {
  return int2_ ? pages_.nbytes() + window_pages_.nbytes() : keys_.nbytes() + values_.nbytes();
}

void DecodeStep::embed_tokens() {
  check(embed(bf16(weights_.embedding), best(), tokens_.data_ptr<std::int32_t>(), bf16(hidden_),
              static_cast<int>(batch_), static_cast<int>(config_.hidden), stream()),
        "embed");
}

// Tokens that leave the windows, of all layers: they were written by earlier steps. The kernel takes the newest token
// of `leaving_`.
void DecodeStep::quantize() {
  kernels::NewestTokensParams p{};
  p.sides = reinterpret_cast<const kernels::NewestSide*>(sides_.const_data_ptr<std::uint8_t>());
  p.lengths = leaving_.const_data_ptr<std::int32_t>(), p.page_table = page_table_.const_data_ptr<std::int32_t>();
  p.window_table = window_table_.const_data_ptr<std::int32_t>();
  p.side_count = static_cast<std::int32_t>(2 * config_.layers), p.batch = static_cast<std::int32_t>(batch_);
  p.max_pages = static_cast<std::int32_t>(max_pages_), p.kv_heads = static_cast<std::int32_t>(config_.kv_heads);
  p.head_dim = static_cast<std::int32_t>(config_.head_dim), p.sink = static_cast<std::int32_t>(windows_.sink);
  p.sink_pages = static_cast<std::int32_t>(sink_pages_), p.ring_pages = static_cast<std::int32_t>(ring_pages_);
  p.encoder = kernels::QuantizeEncoder::kMinMax;
  check(kernels::newest_tokens(p, stream()), "newest_tokens");
}

// Keys and values of each layer, for quantize().
at::Tensor DecodeStep::described_sides() {
  const PageLayout layout = kernels::uniform_page(static_cast<int>(config_.head_dim));
  const at::Tensor out = at::zeros({2 * config_.layers, kernels::kNewestSideBytes}, at::kByte);
  auto* sides = reinterpret_cast<kernels::NewestSide*>(out.data_ptr<std::uint8_t>());
  for (std::int64_t l = 0; l < config_.layers; ++l) {
    for (const bool value : {false, true}) {
      kernels::NewestSide side{};
      side.layout = value ? layout.value : layout.key, side.value_side = value;
      side.pages = pages_.data_ptr<std::uint8_t>() + l * pages_.stride(0);
      side.windows = window_pages_.const_data_ptr<std::uint8_t>() + l * window_pages_.stride(0);
      side.clip = clip_.const_data_ptr<float>() + l * config_.kv_heads;
      side.bad = bad_.data_ptr<std::int32_t>() + (value ? config_.layers : 0) + l;
      side.page_bytes = static_cast<std::int32_t>(page_bytes_);
      std::memcpy(sides + 2 * l + (value ? 1 : 0), &side, sizeof side);
    }
  }
  return out.to(kGpu);
}

// normed_ = norm(hidden)
void DecodeStep::norm(const at::Tensor& weight) {
  if (!does(StepPart::kNorms)) return;
  check(rms_norm(bf16(hidden_), bf16(weight), bf16(normed_), static_cast<int>(batch_), static_cast<int>(config_.hidden),
                 static_cast<float>(config_.rms_eps), stream()),
        "rms_norm");
}

// out = x w^T, or out += x w^T
void DecodeStep::product(StepPart part, const at::Tensor& x, const at::Tensor& w, const at::Tensor& out, bool add) {
  if (!does(part)) return;
  products_.multiply(x.view({batch_, w.size(1)}), w, out.view({batch_, w.size(0)}), add);
}

// out = norm(hidden) w^T of one sequence
void DecodeStep::normed_row(StepPart part, const at::Tensor& w, const at::Tensor& norm, const at::Tensor& out,
                            GemvEnd end) {
  if (!does(part)) return;
  GemvParams p;
  p.w = bf16(w), p.x = bf16(hidden_), p.norm = bf16(norm), p.y = end == GemvEnd::kArgmax ? nullptr : bf16(out);
  p.best = end == GemvEnd::kArgmax ? best() : nullptr;
  p.rows = static_cast<int>(end == GemvEnd::kGate ? w.size(0) / 2 : w.size(0));
  p.columns = static_cast<int>(w.size(1)), p.eps = static_cast<float>(config_.rms_eps);
  check(gemv(p, end, stream()), "gemv");
}

// hidden += x w^T of one sequence
void DecodeStep::add_row(StepPart part, const at::Tensor& x, const at::Tensor& w) {
  if (!does(part)) return;
  GemvParams p;
  p.w = bf16(w), p.x = bf16(x), p.residual = bf16(hidden_), p.y = bf16(hidden_);
  p.rows = static_cast<int>(w.size(0)), p.columns = static_cast<int>(w.size(1));
  check(gemv(p, GemvEnd::kResidual, stream()), "gemv");
}

Bf16AppendParams DecodeStep::norms_and_rope(std::int64_t index) {
  const ModelConfig& c = config_;
  const StepLayer& l = weights_.layers[static_cast<std::size_t>(index)];
  Bf16AppendParams a;
  a.qkv = bf16(qkv_), a.q_norm = bf16(l.plain.q_norm), a.k_norm = bf16(l.plain.k_norm);
  a.rope_cos = weights_.rope_cos.const_data_ptr<float>(), a.rope_sin = weights_.rope_sin.const_data_ptr<float>();
  a.lengths = lengths_.const_data_ptr<std::int32_t>();
  a.batch = static_cast<int>(batch_), a.query_heads = static_cast<int>(c.query_heads);
  a.kv_heads = static_cast<int>(c.kv_heads), a.capacity = static_cast<int>(context_);
  a.eps = static_cast<float>(c.rms_eps);
  return a;
}

void DecodeStep::append_int2(std::int64_t index) {
  const ModelConfig& c = config_;
  const StepLayer& l = weights_.layers[static_cast<std::size_t>(index)];
  check(norm_and_rope(norms_and_rope(index), bf16(qkv_), stream()), "norm_and_rope");
  kernels::AppendTokensParams a;
  const std::int64_t q = c.query_heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  a.q = bits(qkv_), a.k = bits(qkv_) + q, a.v = bits(qkv_) + q + kv;
  a.q_stride = a.k_stride = a.v_stride = qkv_.stride(0);
  a.lengths = lengths_.const_data_ptr<std::int32_t>();
  a.query_matrix = a.key_matrix = l.key_rotation.const_data_ptr<float>();
  a.query = reinterpret_cast<std::uint16_t*>(bf16(query_));
  a.window_pages = window_pages_.data_ptr<std::uint8_t>() + index * window_pages_.stride(0);
  a.window_table = window_table_.const_data_ptr<std::int32_t>();
  a.tokens = static_cast<std::int32_t>(batch_), a.query_heads = static_cast<std::int32_t>(c.query_heads);
  a.kv_heads = static_cast<std::int32_t>(c.kv_heads), a.head_dim = static_cast<std::int32_t>(c.head_dim);
  a.sink = static_cast<std::int32_t>(windows_.sink), a.sink_pages = static_cast<std::int32_t>(sink_pages_);
  a.ring_pages = static_cast<std::int32_t>(ring_pages_);
  check(kernels::append_tokens(a, stream()), "append_tokens");
}

void DecodeStep::attend_int2(std::int64_t index) {
  const ModelConfig& c = config_;
  kernels::PagedDecodeParams p{};
  p.q = query_.const_data_ptr(), p.out = attended_.data_ptr();
  p.pages = pages_.data_ptr<std::uint8_t>() + index * pages_.stride(0);
  p.page_table = page_table_.const_data_ptr<std::int32_t>();
  p.window_pages = window_pages_.data_ptr<std::uint8_t>() + index * window_pages_.stride(0);
  p.window_table = window_table_.const_data_ptr<std::int32_t>();
  p.lengths = lengths_.const_data_ptr<std::int32_t>();
  p.workspace = workspace_.data_ptr();
  p.batch = static_cast<std::int32_t>(batch_), p.query_heads = static_cast<std::int32_t>(c.query_heads);
  p.kv_heads = static_cast<std::int32_t>(c.kv_heads), p.head_dim = static_cast<std::int32_t>(c.head_dim);
  p.max_pages = static_cast<std::int32_t>(max_pages_);
  p.sink = static_cast<std::int32_t>(windows_.sink), p.recent = static_cast<std::int32_t>(windows_.recent),
  p.flush = static_cast<std::int32_t>(windows_.flush);
  p.sink_pages = static_cast<std::int32_t>(sink_pages_), p.ring_pages = static_cast<std::int32_t>(ring_pages_);
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  check(kernels::decode_attention(p, stream()), "decode_attention");
}

void DecodeStep::append_rows_bf16(std::int64_t index) {
  Bf16AppendParams a = norms_and_rope(index);
  const at::Tensor keys = keys_[index], values = values_[index];
  a.query = bf16(query_), a.keys = bf16(keys), a.values = bf16(values);
  check(append_bf16(a, stream()), "append_bf16");
}

void DecodeStep::attend_bf16(std::int64_t index) {
  const ModelConfig& c = config_;
  const at::Tensor keys = keys_[index], values = values_[index];
  at::globalContext().setSDPUseFlash(kind_ == CacheKind::kBf16Flash);
  at::globalContext().setSDPUseCuDNN(kind_ == CacheKind::kBf16Cudnn);
  at::globalContext().setSDPUseMath(false);
  at::globalContext().setSDPUseMemEfficient(false);
  const at::Tensor o =
      at::scaled_dot_product_attention(query_.unsqueeze(2), keys.narrow(2, 0, length_), values.narrow(2, 0, length_),
                                       {}, 0.0, false, std::nullopt, /*enable_gqa=*/true);
  attended_ = o.reshape({batch_, c.query_heads, c.head_dim});
}

void DecodeStep::attend(std::int64_t index) {
  if (does(StepPart::kAppend)) int2_ ? append_int2(index) : append_rows_bf16(index);
  if (does(StepPart::kAttention)) int2_ ? attend_int2(index) : attend_bf16(index);
}

void DecodeStep::layer(std::int64_t index) {
  const StepLayer& l = weights_.layers[static_cast<std::size_t>(index)];
  const at::Tensor& o = int2_ ? l.absorbed_o : l.plain.o;
  if (batch_ == 1) {
    normed_row(StepPart::kQkv, l.qkv, l.plain.input_norm, qkv_, GemvEnd::kPlain);
    attend(index);
    add_row(StepPart::kOutput, attended_, o);
    normed_row(StepPart::kGateUp, l.gate_up, l.plain.mlp_norm, gated_, GemvEnd::kGate);
    add_row(StepPart::kDown, gated_, l.plain.down);
    return;
  }
  norm(l.plain.input_norm);
  product(StepPart::kQkv, normed_, l.qkv, qkv_, false);
  attend(index);
  product(StepPart::kOutput, attended_, o, hidden_, true);
  norm(l.plain.mlp_norm);
  product(StepPart::kGateUp, normed_, l.gate_up, gate_up_, false);
  if (does(StepPart::kGate)) {
    check(silu_gate(bf16(gate_up_), bf16(gated_), static_cast<int>(batch_), static_cast<int>(config_.intermediate),
                    stream()),
          "silu_gate");
  }
  product(StepPart::kDown, gated_, l.plain.down, hidden_, true);
}

unsigned long long* DecodeStep::best() { return reinterpret_cast<unsigned long long*>(best_.data_ptr<std::int64_t>()); }

void DecodeStep::run() {
  if (does(StepPart::kEmbedding)) embed_tokens();
  if (int2_ && does(StepPart::kQuantize)) quantize();
  for (std::int64_t i = 0; i < config_.layers; ++i) layer(i);
  if (batch_ == 1) {
    normed_row(StepPart::kHead, weights_.head, weights_.final_norm, {}, GemvEnd::kArgmax);
    return;
  }
  norm(weights_.final_norm);
  product(StepPart::kHead, normed_, weights_.head, logits_, false);
  if (does(StepPart::kArgmax)) {
    check(argmax(bf16(logits_), best(), static_cast<int>(batch_), static_cast<int>(config_.vocabulary), stream()),
          "argmax");
  }
}

}  // namespace oscar::bench
