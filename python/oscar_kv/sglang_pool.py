"""The memory pool of SGLang with the pages of every layer: blocks of 64 tokens, [Hkv, page bytes] each, whose bytes may
differ by layer. The first block is SGLang's padding. What would copy keys and values elsewhere is refused, because the
BF16 windows are not in the pool."""
import torch
from sglang.srt.mem_cache.memory_pool import KVCache

from .errors import InputError
from .page_layout import PAGE_TOKENS


class OscarPool(KVCache):
    """serving: sglang_serving.Serving with its caches allocated; size: tokens; layers: SGLang's ModelLayerInfo."""

    def __init__(self, serving, size, page_size, layers, device):
        # A dtype that no model's fused kernel writes: they ask for BF16.
        super().__init__(size, page_size, torch.uint8, layers.num_effective_layers, device, False, layers.start_layer, layers.end_layer)
        self.serving, self.blocks = serving, size // PAGE_TOKENS + 1
        self.memory = {index: torch.zeros((self.blocks, layer.kv_heads, PAGE_TOKENS, serving.cells[index]), dtype=torch.uint8, device=device)
                       for index, layer in serving.layers.items()}
        self.pages = {index: serving.kv(index).pool(memory) for index, memory in self.memory.items()}
        self._finalize_allocation_log(size)

    def get_kv_size_bytes(self):
        return sum(memory.numel() for memory in self.memory.values())

    def _refuse(self, *args, **kwargs):
        raise InputError("SGLang asks for the keys and values of the cache as tensors, which the 2-bit cache does not have; this feature "
                         "is not served with oscar-kv")

    get_key_buffer = get_value_buffer = get_kv_buffer = set_kv_buffer = _refuse
    get_cpu_copy = load_cpu_copy = move_kv_cache = get_contiguous_buf_infos = host_pool_decls = _refuse
