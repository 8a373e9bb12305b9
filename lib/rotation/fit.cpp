#include "rotation/fit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <mutex>

#include "base/errors.h"
#include "base/interrupt.h"
#include "rotation/eigen.h"
#include "rotation/fit_rows.h"
#include "rotation/predict.h"
#include "rotation/transforms.h"

namespace oscar {
namespace {

constexpr std::int64_t kFewestRows = 16;  // in each half; below that a search would fit noise

void check_options(const Statistics& s, const FitOptions& o) {
  if (s.head_dim > kMaxHeadDim) {
    throw InputError("head_dim " + std::to_string(s.head_dim) + " is beyond the codec's " +
                     std::to_string(kMaxHeadDim));
  }
  if (o.group < 0 || (o.group > 0 && s.head_dim % o.group != 0)) {
    throw UsageError("group " + std::to_string(o.group) + " does not divide head_dim " + std::to_string(s.head_dim));
  }
  const auto ratio = [](float rho) { return rho >= 0.0f && rho <= 1.0f; };
  if (o.clip == ClipMode::kFixed && (!ratio(o.key_clip) || !ratio(o.value_clip))) {
    throw UsageError("a clip ratio lies between 0 (off) and 1");
  }
}

// One side of all layers: targets, eigenvectors, transforms.
struct FittedSide {
  std::vector<at::Tensor> heads;    // [layer] [Hkv, d, d] each head's own moment
  std::vector<at::Tensor> vectors;  // [layer] [S, d, d]; undefined when data-free
  std::vector<SideTransform> transforms;
};

FittedSide fit_side(const Statistics& s, const FitOptions& o, Side side, std::vector<std::string>& warnings) {
  const TransformKind& kind = find_transform(o.method);
  FittedSide result;
  std::vector<at::Tensor> targets;
  std::vector<std::string> names;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    result.heads.push_back(head_moments(s, layer, side, o.value_target));
    targets.push_back(scope_moments(result.heads.back(), o.scope));
    for (std::string& name :
         target_names(static_cast<std::int64_t>(layer), side, o.value_target, o.scope, s.kv_heads)) {
      names.push_back(std::move(name));
    }
  }
  SymmetricEigen eigen;
  const at::Tensor all = at::cat(targets);  // [L S, d, d]
  if (!kind.data_free) {
    const at::Tensor traces = all.diagonal(0, -2, -1).sum(-1);
    for (std::int64_t n = 0; n < all.size(0); ++n) {
      if (traces[n].item<double>() == 0.0) {
        warnings.push_back(names[static_cast<std::size_t>(n)] + ": is all zero; its rotation is the Hadamard matrix");
      }
    }
    eigen = symmetric_eigen(all, names);
  }
  const std::int64_t each = targets.front().size(0);
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    SideInput input{side, targets[layer], {}, {}};
    if (!kind.data_free) {
      input.values = eigen.values.narrow(0, static_cast<std::int64_t>(layer) * each, each);
      input.vectors = eigen.vectors.narrow(0, static_cast<std::int64_t>(layer) * each, each);
    }
    result.vectors.push_back(input.vectors);
    result.transforms.push_back(kind.build(input));
  }
  return result;
}

// Calls options.on_step from any thread, one at a time.
class Steps {
 public:
  explicit Steps(const FitOptions& options) : options_(options) {}
  void operator()() {
    if (!options_.on_step) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    options_.on_step();
  }

 private:
  const FitOptions& options_;
  std::mutex mutex_;
};

// Runs task(layer, head) for all, one head to a thread. Errors name the place.
void for_each_head(const Statistics& s, Steps& steps, const std::function<void(std::size_t, std::int64_t)>& task) {
  const auto count = static_cast<std::int64_t>(s.layers.size()) * s.kv_heads;
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      if (interrupt_requested()) throw InterruptedError("interrupted; nothing was written, run the same command again");
      const std::int64_t layer = n / s.kv_heads, head = n % s.kv_heads;
      try {
        task(static_cast<std::size_t>(layer), head);
      } catch (const NumericalError& e) {
        throw NumericalError("layer " + std::to_string(layer) + " head " + std::to_string(head) + ": " + e.what());
      }
      steps();
    }
  });
}

// Clip ratios of one side, written into the transforms; returns the global one.
float search_clip(const Statistics& s, const FitOptions& o, Side side, const std::vector<LayerRows>& rows,
                  const RowCode& code, std::vector<SideTransform>& transforms, Steps& steps) {
  const std::vector<float> candidates = clip_candidates(s.head_dim);
  const ScorerFactory scorer = scorer_factory(side == Side::kKey ? o.key_objective : o.value_objective);
  std::vector<std::vector<ClipCurve>> curves(s.layers.size(),
                                             std::vector<ClipCurve>(static_cast<std::size_t>(s.kv_heads)));
  for_each_head(s, steps, [&](std::size_t layer, std::int64_t head) {
    ClipCurve& curve = curves[layer][static_cast<std::size_t>(head)];
    for (const bool held_out : {false, true}) {
      const RowSet& set = held_out ? rows[layer].held_out : rows[layer].fit;
      HeadProblem problem = make_problem(s, layer, head, set, code, o.encoder);
      use_transform(problem, side, transforms[layer], head);
      const std::unique_ptr<HeadScorer> head_scorer = scorer(problem);
      std::vector<ErrorSum>& sums = held_out ? curve.held_out : curve.fit;
      for (const float rho : candidates) sums.push_back(head_scorer->score(rho));
    }
  });
  std::vector<ClipCurve> layers(s.layers.size());
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    for (const ClipCurve& curve : curves[layer]) layers[layer] += curve;
    SideTransform& transform = transforms[layer];
    transform.clip.clear();
    if (o.scope == Scope::kLayer) {
      transform.clip.push_back(candidates[choose_clip(layers[layer])]);
    } else {
      for (const ClipCurve& curve : curves[layer]) transform.clip.push_back(candidates[choose_clip(curve)]);
    }
  }
  return candidates[choose_global_clip(layers)];
}

void set_clip(std::vector<SideTransform>& transforms, float rho) {
  for (SideTransform& transform : transforms) {
    for (float& clip : transform.clip) clip = rho;
  }
}

void note_rank(const Statistics& s, std::vector<std::string>& warnings) {
  if (s.tokens < s.head_dim) {
    warnings.push_back("the statistics hold " + std::to_string(s.tokens) + " tokens, fewer than head_dim " +
                       std::to_string(s.head_dim) +
                       ": directions that never occurred are in arbitrary order; collect "
                       "a few thousand tokens");
  }
}

}  // namespace

std::int64_t fit_steps(const Statistics& s, const FitOptions& o) {
  const auto layers = static_cast<std::int64_t>(s.layers.size());
  const bool search =
      o.clip == ClipMode::kSearch && split_rows(s, 0, o.sink, o.max_rows).held_out.tokens() >= kFewestRows;
  return layers + (search ? 2 * layers * s.kv_heads : 0);
}

FitResult fit(const Statistics& s, const FitOptions& o) {
  const TransformKind& kind = find_transform(o.method);
  check_moments(s);
  check_options(s, o);
  const RowCode code = uniform_code(static_cast<int>(s.head_dim), static_cast<int>(o.group));
  FitResult result;
  Steps steps(o);
  if (!kind.data_free) note_rank(s, result.warnings);
  FittedSide key = fit_side(s, o, Side::kKey, result.warnings);
  FittedSide value = fit_side(s, o, Side::kValue, result.warnings);

  std::vector<LayerRows> rows;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    rows.push_back(split_rows(s, layer, o.sink, o.max_rows));
  }
  result.fit_rows = rows.front().fit.tokens();
  result.held_out_rows = rows.front().held_out.tokens();
  const bool enough = result.held_out_rows >= kFewestRows;
  if (o.clip == ClipMode::kFixed) {
    set_clip(key.transforms, result.global_key_clip = o.key_clip);
    set_clip(value.transforms, result.global_value_clip = o.value_clip);
  } else if (o.clip == ClipMode::kSearch && enough) {
    result.global_key_clip = search_clip(s, o, Side::kKey, rows, code, key.transforms, steps);
    result.global_value_clip = search_clip(s, o, Side::kValue, rows, code, value.transforms, steps);
  } else if (o.clip == ClipMode::kSearch) {
    result.warnings.push_back("the statistics hold " + std::to_string(result.fit_rows + result.held_out_rows) +
                              " sampled rows beyond the sink window, too few for a clip search (at least " +
                              std::to_string(2 * kFewestRows) + "): no clip is set; pass --clip K,V to set one");
  }

  result.layers.resize(s.layers.size());
  at::parallel_for(0, static_cast<std::int64_t>(s.layers.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto layer = static_cast<std::size_t>(begin); layer < static_cast<std::size_t>(end); ++layer) {
      LayerFit& out = result.layers[layer];
      out.transform = {static_cast<std::int64_t>(layer), s.head_dim, s.kv_heads, key.transforms[layer],
                       value.transforms[layer]};
      out.key_energy = captured_energy(key.heads[layer], key.vectors[layer]);
      out.value_energy = captured_energy(value.heads[layer], value.vectors[layer]);
      if (result.held_out_rows > 0) {
        out.key = predict_side(s, layer, Side::kKey, out.transform.key, result.global_key_clip, rows[layer].held_out,
                               code, o.encoder);
        out.value = predict_side(s, layer, Side::kValue, out.transform.value, result.global_value_clip,
                                 rows[layer].held_out, code, o.encoder);
      }
      steps();
    }
  });
  return result;
}

}  // namespace oscar
