// Where the backward pass of the KL metric starts: labels drawn from the model's own distribution. With y ~ p,
// F = E[(grad log p(y))^T (grad log p(y))] is the Fisher matrix of the distribution, and KL(p || p') = e F e^T / 2 for
// a small change e of what it depends on. Labels of different tokens are independent and their gradients have mean
// zero, so one backward pass with a label for every token serves all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "model/decoder.h"

namespace oscar {

// Uniform in [0, 1), by (seed, prompt set, sequence, position) alone; docs/format-statistics.md has the formula.
double label_draw(std::uint64_t seed, std::string_view prompt_set_sha256, std::int64_t sequence, std::int64_t position);

// p [n, V] FP32, probabilities; draws [n] FP64 in [0, 1) -> [n] int64: the first label whose cumulative probability
// (added up in FP64 by blocks of 64) is above the draw times their sum.
at::Tensor draw_labels(const at::Tensor& p, const at::Tensor& draws);

// hidden [n, hidden]: output of the last layer; labels [n] int64. d log p(label) / d hidden of each row, [n, hidden]
// FP32. Not under InferenceMode.
at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& labels);

// The same with labels of these draws [n], as draw_labels() makes them.
at::Tensor drawn_label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& draws);

}  // namespace oscar
