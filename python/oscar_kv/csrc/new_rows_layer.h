// new_rows() inside another operator.
#pragma once

#include "kernels/chunks/new_rows.h"
#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

// What all new rows of a layer share.
struct NewRowsLayer {
  oscar::kernels::NewRowsParams key, value;
  std::int32_t pages, window_pages, positions;
};

NewRowsLayer new_rows_layer(const Arguments& arguments, const Tensor& pool, const Tensor& windows,
                            const Tensor& key_matrix, const Tensor& value_matrix, const std::optional<Tensor>& key_mean,
                            const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases,
                            const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip,
                            const Tensor& value_clip, const Tensor& bad, bool search,
                            const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code);

void launch_new_rows(const Arguments& arguments, NewRowsLayer layer, const Tensor& key, const Tensor& value,
                     const Tensor& runs);

}  // namespace oscar_kv
