// The available methods, for `oscar-verify methods`.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_config.h"

namespace oscar {

struct ListedMethod {
  std::string id, summary, source;
  double bits = 0;      // per element of a quantized token, including parameters, mean of keys and values
  std::string windows;  // the authors' windows, tokens at the start / at the end; empty: from --windows
  bool needs_bundle = false, decode = false;  // decode: also runs token by token
  std::string does_not_fit;                   // reason, if a model is given and the method does not fit it
};

// With a model, bits and fit are for its heads. Without one (null), for 8 KV heads of size 128.
std::vector<ListedMethod> list_methods(const ModelConfig* model);

std::string method_list_table(const std::vector<ListedMethod>& methods, const ModelConfig* model);
std::string method_list_json(const std::vector<ListedMethod>& methods);

// UsageError with the list of all methods for the first name that is neither a method nor "all" or "2bit". For runs
// without a bundle, because bundle rows may have other names.
void require_known_methods(const std::vector<std::string>& names);

}  // namespace oscar
