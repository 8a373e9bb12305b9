// Pages of methods of other papers on a GPU: attention over them and their bytes against the CPU's.
// Needs a GPU; skipped without one.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/cached_attention.h"
#include "attention/scenario.h"
#include "base/errors.h"
#include "support/gpu.h"

namespace oscar {
namespace {

ModelConfig model_of(std::int64_t d, std::int64_t kv_heads, std::int64_t group) {
  ModelConfig m;
  m.layers = 2, m.kv_heads = kv_heads, m.query_heads = kv_heads * group, m.head_dim = d;
  return m;
}

// Keys with an outlier channel and a few weak tokens; sequences of these lengths in one batch.
Call make_call(const ModelConfig& m, const SequenceBatch& batch, std::uint64_t seed) {
  Call call;
  call.batch = batch;
  const std::int64_t tokens = batch.tokens(), d = m.head_dim;
  call.input.q = normal(seed, {tokens, m.query_heads, d});
  call.input.k = normal(seed + 1, {tokens, m.kv_heads, d}), call.input.v = normal(seed + 2, {tokens, m.kv_heads, d});
  call.input.k.select(2, 5).mul_(6.0);
  call.input.k.narrow(0, 0, 3).mul_(0.05);
  call.input.scale = 1.0 / std::sqrt(static_cast<double>(d));
  return call;
}

class KiviCuda : public testing::Test {
 protected:
  const at::Device gpu_{at::kCUDA, 0};

  void compare(const std::string& id, const ModelConfig& m, Call call) {
    SCOPED_TRACE(id + ", head size " + std::to_string(m.head_dim) + ", group " + std::to_string(m.gqa_group()));
    const KvMethod method = make_method(id, m, nullptr, {});
    PagedAttention cpu(method, m), cuda(method, m, gpu_);
    call.input.batch = &call.batch;
    const at::Tensor expected = cpu.attend(call.input);
    AttentionInput moved = call.input;
    moved.q = call.input.q.to(gpu_), moved.k = call.input.k.to(gpu_), moved.v = call.input.v.to(gpu_);
    if (call.input.sinks.defined()) moved.sinks = call.input.sinks.to(gpu_);
    const at::Tensor found = cuda.attend(moved).to(at::kCPU);
    EXPECT_LT(((found - expected).norm() / expected.norm()).item<double>(), 5e-5);
    EXPECT_LT(((found - expected).norm(2, -1) / expected.norm(2, -1)).max().item<double>(), 2.5e-4);
    EXPECT_GT(cuda.allocated_bytes(), 0u);
    for (const std::int64_t id : call.batch.ids) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        const StoredPages a = cpu.stored(0, id, side), b = cuda.stored(0, id, side);
        EXPECT_EQ(a.tokens, b.tokens);
        EXPECT_EQ(a.pages, b.pages) << "sequence " << id << (side == Side::kKey ? ", keys" : ", values");
      }
    }
  }
};

TEST_F(KiviCuda, AttendsAsTheCpuDoes) {
  OSCAR_NEEDS_GPU();
  for (const char* id : {"oscar-tns", "kivi2", "kivi2-g128"}) {
    for (const std::int64_t d : {std::int64_t{64}, std::int64_t{128}}) {
      const ModelConfig m = model_of(d, 2, 4);
      compare(id, m, make_call(m, {{0, 7}, {700, 330}, {0, 0}}, 1));
    }
  }
}

TEST_F(KiviCuda, EveryGroupOfQueryHeads) {
  OSCAR_NEEDS_GPU();
  for (const std::int64_t group : {1, 2, 5, 7, 8, 12, 16}) {
    const ModelConfig m = model_of(128, 2, group);
    compare("oscar-tns", m, make_call(m, {{0}, {400}, {0}}, 5));
  }
}

TEST_F(KiviCuda, SlidingWindowSoftCapAndSinkLogits) {
  OSCAR_NEEDS_GPU();
  const ModelConfig m = model_of(128, 2, 4);
  for (const char* id : {"oscar-tns", "kivi2-g128", "quarot2"}) {
    Call call = make_call(m, {{0}, {600}, {0}}, 9);
    call.input.sliding_window = 200, call.input.soft_cap = 20.0;
    compare(id, m, call);
    call.input.sliding_window = 0, call.input.soft_cap = 0.0, call.input.sinks = normal(3, {m.query_heads});
    compare(id, m, call);
  }
}

TEST_F(KiviCuda, AppendedTokensAreAttendedTo) {
  OSCAR_NEEDS_GPU();
  const ModelConfig m = model_of(128, 2, 4);
  const KvMethod method = make_method("oscar-tns", m, nullptr, {});
  Call call = make_call(m, {{3}, {300}, {0}}, 11);
  call.input.batch = &call.batch;
  PagedAttention once(method, m, gpu_), twice(method, m, gpu_);
  const at::Tensor all = once.attend(call.input);
  SequenceBatch first{{3}, {250}, {0}}, second{{3}, {50}, {250}};
  AttentionInput head = call.input, tail = call.input;
  head.batch = &first, tail.batch = &second;
  for (at::Tensor AttentionInput::*x : {&AttentionInput::q, &AttentionInput::k, &AttentionInput::v}) {
    head.*x = (call.input.*x).narrow(0, 0, 250), tail.*x = (call.input.*x).narrow(0, 250, 50);
  }
  twice.append(head);
  // How many parts an item's pages are cut into depends on how many queries are in the call, and with it the order of
  // sums.
  const at::Tensor found = twice.attend(tail), expected = all.narrow(0, 250, 50);
  EXPECT_LT(((found - expected).norm() / expected.norm()).item<double>(), 1e-6);
  twice.release(3);
  EXPECT_TRUE(at::equal(twice.attend(call.input), all));
}

TEST_F(KiviCuda, EveryHeadSize) {
  OSCAR_NEEDS_GPU();
  for (const char* id : {"quarot2"}) {
    for (const std::int64_t d : {std::int64_t{64}, std::int64_t{128}, std::int64_t{256}}) {
      const ModelConfig m = model_of(d, 2, d == 64 ? 20 : 3);
      compare(id, m, make_call(m, {{0, 7, 2}, {500, 1, 230}, {0, 0, 0}}, 21));
    }
  }
  for (const char* id : {"oscar-tns", "kivi2", "kivi2-g128"}) {
    const ModelConfig m = model_of(256, 2, 3);
    compare(id, m, make_call(m, {{0, 7}, {500, 330}, {0, 0}}, 23));
  }
  const ModelConfig m = model_of(96, 3, 2);
  compare("kivi2", m, make_call(m, {{0, 7}, {500, 330}, {0, 0}}, 25));
}

// No GPU needed.
TEST(KiviCudaChoice, SaysThatTheGeneralKernelReadsThesePages) {
  const ModelConfig m = model_of(128, 2, 4), wide = model_of(256, 2, 4), huge = model_of(1024, 2, 4);
  const at::Device gpu(at::kCUDA, 0);
  for (const std::string id : {"oscar-tns", "kivi2", "kivi2-g128", "quarot2"}) {
    const KvMethod method = make_method(id, m, nullptr, {});
    EXPECT_EQ(decode_unsupported(method, m, gpu), "");
    EXPECT_EQ(decode_note(method, m, at::kCPU), "");
    EXPECT_EQ(
        decode_note(method, m, gpu),
        "decode path of '" + id + "': general kernel, because the fast kernel reads only codes of " + "whole rows");
  }
  EXPECT_EQ(decode_unsupported(make_method("oscar-tns", wide, nullptr, {}), wide, gpu), "");
  const std::string text = decode_unsupported(make_method("oscar-tns", huge, nullptr, {}), huge, gpu);
  EXPECT_THAT(text, testing::HasSubstr("cannot run on cuda:0"));
  EXPECT_THAT(text, testing::HasSubstr("head sizes up to 512, not for 1024"));
  EXPECT_THAT(text, testing::HasSubstr("--device cpu"));
}

}  // namespace
}  // namespace oscar
