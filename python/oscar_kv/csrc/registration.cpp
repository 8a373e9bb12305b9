#include "oscar_kv/csrc/operators.h"

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CPU, m) { m.impl("tile_phases", TORCH_BOX(&oscar_kv::make_tile_phases)); }

// python/oscar_kv/ops/operators.py has declared the schemas before this library is loaded.
STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("device_code", TORCH_BOX(&oscar_kv::device_code));
  m.impl("decode_workspace_bytes", TORCH_BOX(&oscar_kv::decode_workspace_bytes));
  m.impl("decode_attention", TORCH_BOX(&oscar_kv::decode_attention));
  m.impl("append_tokens", TORCH_BOX(&oscar_kv::append_tokens));
  m.impl("flush_tokens", TORCH_BOX(&oscar_kv::flush_tokens));
  m.impl("quantize_rows", TORCH_BOX(&oscar_kv::quantize_rows));
  m.impl("dequantize_pages", TORCH_BOX(&oscar_kv::dequantize_pages));
  m.impl("step_tokens", TORCH_BOX(&oscar_kv::step_tokens));
  m.impl("describe_layer", TORCH_BOX(&oscar_kv::describe_layer));
  m.impl("flush_layers", TORCH_BOX(&oscar_kv::flush_layers));
  m.impl("past_rows", TORCH_BOX(&oscar_kv::past_rows));
  m.impl("new_rows", TORCH_BOX(&oscar_kv::new_rows));
  m.impl("quantize_windows", TORCH_BOX(&oscar_kv::quantize_windows));
  m.impl("merge_outputs", TORCH_BOX(&oscar_kv::merge_outputs));
}
