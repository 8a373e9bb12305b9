// A checkpoint beside whose tensors a test puts one stored weight "x.weight", and how it is read.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "model/tiny_checkpoint.h"
#include "support/message_of.h"
#include "support/temp_directory.h"
#include "weights/stored_weight.h"

namespace oscar {

struct WeightCase : TinyCheckpoint {
  // The dequantized weight of [shape].
  at::Tensor read(std::vector<std::int64_t> shape, at::ScalarType dtype = at::kFloat,
                  const std::string& name = "x.weight") const {
    const TempDirectory directory;
    const Checkpoint checkpoint = write(directory.path());
    return load_weight(find_weight(checkpoint, name, shape), dtype);
  }

  // The sentence of the refusal.
  std::string fault(std::vector<std::int64_t> shape, const std::string& name = "x.weight") const {
    return message_of<InputError>([&] { read(shape, at::kFloat, name); });
  }
};

// Numbers of 0 to `values` - 1, the same in every run.
inline at::Tensor random_codes(at::IntArrayRef shape, std::int64_t values, std::uint64_t seed = 5) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(values, shape, generator, at::TensorOptions().dtype(at::kLong));
}

// Positive, far from one another.
inline at::Tensor random_scales(at::IntArrayRef shape, std::uint64_t seed = 6) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::rand(shape, generator, at::TensorOptions().dtype(at::kFloat)).mul_(0.1).add_(0.001);
}

// The 32-bit word of an unsigned value.
inline std::int32_t word(std::uint32_t value) { return static_cast<std::int32_t>(value); }

}  // namespace oscar
