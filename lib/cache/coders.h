// The existing coders (rows_coder.h). make_method.cpp chooses among them.
#pragma once

#include <memory>
#include <vector>

#include "cache/rows_coder.h"
#include "codec/codec.h"
#include "registry/method_spec.h"
#include "transform/transform.h"

namespace oscar {

// Codes each row separately by KvMethod::codec(), with the codes, encoders and layers of the method.
std::shared_ptr<const RowsCoder> transform_coder();

// A method of another paper (methods/engine.h), whose rows stay in the model's basis. UsageError if it does not fit the
// model.
std::shared_ptr<const RowsCoder> spec_coder(const MethodSpec& description, const ModelConfig& model);

}  // namespace oscar
