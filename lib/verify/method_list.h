// Which methods there are, for `oscar-verify methods`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"

namespace oscar {

struct ListedMethod {
  std::string id, summary, source;
  double bits = 0;      // of an element of a coded token, parameters included, mean of keys and values
  std::string windows;  // of its authors, tokens at the start / at the end; empty: those of --windows
  bool needs_bundle = false, decode = false;  // decode: runs token by token, too
  std::string does_not_fit;                   // why not, when a model is given and the method does not fit it
};

// With a model, bits and fit are of its heads; without one (null) of 8 KV heads of size 128.
std::vector<ListedMethod> list_methods(const ModelConfig* model);

std::string method_list_table(const std::vector<ListedMethod>& methods, const ModelConfig* model);
std::string method_list_json(const std::vector<ListedMethod>& methods);

// UsageError with the list of all methods for the first name that is none, nor all or 2bit; for runs without a bundle,
// whose rows may have names of their own.
void require_known_methods(const std::vector<std::string>& names);

}  // namespace oscar
