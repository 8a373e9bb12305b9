#include "verify/probe.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/formatted.h"
#include "base/log.h"
#include "model/latent_attention.h"
#include "verify/forward.h"
#include "verify/verify_phases.h"
#include "verify/verify_work.h"

namespace oscar {
namespace {

// The pages of one method in one layer.
struct PageCheck {
  ProbedMethod::Cache* cache;
  LayerToCheck layer;
};

void check_pages(const std::vector<PageCheck>& checks, Timeline* timeline) {
  const Timeline::Phase checking(timeline, verify_phase::kChecks);
  for (const PageCheck& check : checks) {
    const double begin = steady_seconds();
    check.cache->checker.check_layer(check.layer);
    check.cache->seconds += steady_seconds() - begin;
  }
}

}  // namespace

ProbedMethod::ProbedMethod(const KvMethod& m, const ModelConfig& model, at::Device device, Timeline* timeline,
                           std::size_t threads)
    : method(&m), attention(m, timeline), sums(static_cast<std::size_t>(model.kv_layers())) {
  for (std::int64_t place = 0; place < model.kv_layers(); ++place) numbers.push_back(model.kv_layer(place));
  if (!m.paged()) return;
  const std::string note = decode_note(m, model, device);
  if (!note.empty()) log_detail(note);
  for (std::size_t i = 0; i < threads; ++i) caches.push_back({CacheChecker(m, model, device)});
}

void ProbedMethod::finish_cache() {
  if (caches.empty()) return;
  double took = 0;
  for (const Cache& cache : caches) {
    const CacheCheck found = cache.checker.result();
    check.rows += found.rows, check.differing += found.differing;
    check.read += found.read, check.misread += found.misread;
    check.reader_error = std::max(check.reader_error, found.reader_error);
    check.allocated_bytes += found.allocated_bytes;
    took += cache.seconds;
  }
  caches.clear();
  log_detail("the pages of " + method->id + " were checked in " + formatted("%.2f s", took) + ": " +
             std::to_string(check.read) + " rows read back, " + std::to_string(check.rows) +
             " compared with the encoder on the CPU");
}

// Six numbers of the cache check. Then for each layer two sums, the number of heads, and each head's sums.
std::vector<double> ProbedMethod::state() const {
  constexpr std::size_t kNumbers = sizeof(HeadErrorSums) / sizeof(double);
  std::vector<double> all{static_cast<double>(check.rows),
                          static_cast<double>(check.differing),
                          static_cast<double>(check.read),
                          static_cast<double>(check.misread),
                          check.reader_error,
                          static_cast<double>(check.allocated_bytes)};
  for (const LayerErrorSums& layer : sums) {
    all.insert(all.end(), {layer.projected_error, layer.projected_energy, static_cast<double>(layer.heads.size())});
    for (const HeadErrorSums& head : layer.heads) {
      const auto numbers = std::bit_cast<std::array<double, kNumbers>>(head);
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
  }
  return all;
}

void ProbedMethod::restore(const std::vector<double>& state, std::int64_t kv_heads, const std::string& where) {
  constexpr std::size_t kNumbers = sizeof(HeadErrorSums) / sizeof(double);
  constexpr double kMostCount = 1e15;  // exact in both FP64 and int64
  const double *at = state.data(), *end = at + state.size();
  const auto take = [&] {
    if (at == end) damaged_run(where, "sums of a method are too few");
    if (!std::isfinite(*at)) damaged_run(where, "a sum of a method is NaN or infinite");
    return *at++;
  };
  const auto positive = [&](double most) {
    const double value = take();
    if (value < 0.0 || value > most) damaged_run(where, "a sum of a method is out of range");
    return value;
  };
  const auto count = [&] { return static_cast<std::int64_t>(positive(kMostCount)); };
  constexpr double kAny = std::numeric_limits<double>::max();
  CacheCheck found{.rows = count(),
                   .differing = count(),
                   .read = count(),
                   .misread = count(),
                   .reader_error = positive(kAny),
                   .allocated_bytes = static_cast<std::uint64_t>(count())};
  if (found.differing > found.rows || found.misread > found.read)
    damaged_run(where, "more rows of a cache differ than there are");
  std::vector<LayerErrorSums> layers(sums.size());
  for (LayerErrorSums& layer : layers) {
    layer.projected_error = positive(kAny);
    layer.projected_energy = positive(kAny);
    const std::int64_t heads = count();
    if (heads != 0 && heads != kv_heads) damaged_run(where, "sums are of another number of heads");
    for (std::int64_t h = 0; h < heads; ++h) {
      std::array<double, kNumbers> numbers;
      for (double& x : numbers) x = take();
      layer.heads.push_back(std::bit_cast<HeadErrorSums>(numbers));
    }
  }
  if (at != end) damaged_run(where, "sums of a method are too many");
  check = found;
  sums = std::move(layers);
  caches.clear();
}

std::vector<LayerError> ProbedMethod::layers() const {
  std::vector<LayerError> errors;
  if (!method->quantized) return errors;
  for (std::size_t l = 0; l < sums.size(); ++l) errors.push_back(sums[l].result(numbers[l]));
  return errors;
}

at::Tensor LayerProbe::attend(const AttentionInput& input) {
  const at::Tensor exact = baseline_.attend(input);
  if (input.reader != 0) return exact;  // errors are counted for the layer that owns the cache
  const Timeline::Phase errors(timeline_, verify_phase::kErrors);
  const LayerWeights& weights = decoder_.layer_weights(decoder_.config().kv_layer(input.layer));
  const auto read = [&](const at::Tensor& x) { return read_outputs(decoder_.config(), weights, x); };
  LayerErrors weight_errors(input, tiers_);
  OutputErrors output_errors(read(exact), first_, input.k.size(1), weights.o);
  const std::size_t thread = checks_ == nullptr ? 0 : static_cast<std::size_t>(input.layer) % checks_->size();
  std::vector<PageCheck> pages;
  for (std::size_t m = 0; m < methods_.size(); ++m) {
    ProbedMethod& probed = methods_[m];
    stop_if_interrupted();
    const at::Tensor output = probed.method->quantized ? probed.attention.attend(input) : exact;
    if (check_caches_ && !probed.caches.empty()) {
      pages.push_back({&probed.caches[thread], layer_to_check(input, output)});
      if (checks_ == nullptr) check_pages(pages, timeline_), pages.clear();
    }
    if (!probed.method->quantized_at(input.layer)) continue;
    LayerErrorSums& sums = probed.sums.at(static_cast<std::size_t>(input.layer));
    weight_errors.add_weights(*probed.method, sums);
    output_errors.add(read(output), sums);
  }
  const Timeline::Phase checking(timeline_, verify_phase::kChecks);  // waits if too many layers are queued for checks
  if (!pages.empty()) {
    const std::uint64_t bytes = pages.front().layer.bytes();  // shared by all methods
    (*checks_)[thread].add(bytes, [checked = std::move(pages)] { check_pages(checked, nullptr); });
  }
  return exact;
}

}  // namespace oscar
