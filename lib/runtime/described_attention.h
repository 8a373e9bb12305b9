// The decode path of a method of another paper: one token of every sequence at a time through its paged cache.
#pragma once

#include "model/attention.h"
#include "runtime/described_cache.h"
#include "runtime/method.h"

namespace oscar {

// Appends the new tokens of each sequence, which start where the cache ends, and attends, token by token; [T, Hq, d].
at::Tensor attend_described(DescribedCache& cache, const AttentionInput& input);

// Coded rows (token x KV head) of one side of sequence 0 whose stored codes, parameters or norms are not those of the
// method's own encoder; rows: [T, Hkv, d], all tokens of the sequence. *compared grows by the number of coded rows.
std::int64_t differing_described_rows(const DescribedCache& cache, const MethodDescription& method, std::int64_t layer,
                                      Side side, const at::Tensor& rows, std::int64_t* compared);

}  // namespace oscar
