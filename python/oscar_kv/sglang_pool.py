"""The memory pool of SGLang with the pages of every layer: blocks of 64 tokens, [Hkv, page bytes] each, whose bytes may
differ by layer, and keys and values of layers that stay in BF16. The first block is SGLang's padding. What would copy
keys and values elsewhere is refused, because the BF16 windows are not in the pool."""
import torch
from sglang.srt.mem_cache.memory_pool import KVCache, MHATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from .errors import InputError
from .page_layout import PAGE_TOKENS


class OscarPool(KVCache):
    """serving: sglang_serving.Serving with its caches allocated; size: tokens. A layer's number is SGLang's: its place among
    the layers whose tokens are all kept, serving.whole."""

    def __init__(self, serving, size, page_size, device):
        # A dtype that no model's fused kernel writes: they ask for BF16.
        super().__init__(size, page_size, torch.uint8, len(serving.whole), device, False)
        self.serving, self.blocks = serving, size // PAGE_TOKENS + 1
        self.memory = {index: torch.zeros((self.blocks, layer.tp_k_head_num, PAGE_TOKENS, serving.cells[index]), dtype=torch.uint8, device=device)
                       for index, layer in serving.attention.items()}
        self.pages = {index: serving.kv(index).pool(memory) for index, memory in self.memory.items()}
        plain = [index for index in serving.whole if index in serving.beside]
        self._beside = {place: _bf16(size, page_size, serving.beside[index], 1, device)
                        for place, index in enumerate(serving.whole) if index in plain}
        self.start_layer = first_in_bf16(serving.whole, plain)
        self._finalize_allocation_log(size)

    def get_kv_size_bytes(self):
        return sum(memory.numel() for memory in self.memory.values()) + sum(sum(pool.get_kv_size_bytes()) for pool in self._beside.values())

    def _refuse(self, *args, **kwargs):
        raise InputError("SGLang asks for the keys and values of the cache as tensors, which the 2-bit cache does not have; this feature "
                         "is not served with oscar-kv")

    def _plain(self, place):
        return self._beside.get(place) or self._refuse()

    def get_key_buffer(self, layer_id):
        return self._plain(layer_id).get_key_buffer(0)

    def get_value_buffer(self, layer_id):
        return self._plain(layer_id).get_value_buffer(0)

    def get_kv_buffer(self, layer_id):
        return self._plain(layer_id).get_kv_buffer(0)

    def set_kv_buffer(self, layer, loc_info, cache_k, cache_v, k_scale=None, v_scale=None, layer_id_override=None):
        place = layer.layer_id if layer_id_override is None else layer_id_override
        self._plain(place).set_kv_buffer(layer, loc_info, cache_k, cache_v, k_scale, v_scale, layer_id_override=0)

    get_cpu_copy = load_cpu_copy = move_kv_cache = get_contiguous_buf_infos = host_pool_decls = _refuse


class OscarWindowPool(SWAKVPool):
    """Of models whose windowed layers have a pool of their own in SGLang, which stays in BF16."""

    def __init__(self, serving, size, window_tokens, page_size, windowed, device):
        """windowed: SGLang's numbers of the layers with a window."""
        shape = serving.beside[windowed[0]]
        super().__init__(size, window_tokens, page_size, torch.bfloat16, shape.tp_k_head_num, shape.head_dim, windowed, serving.whole, device,
                         full_kv_pool_class=lambda size, dtype, layer_num: OscarPool(serving, size, page_size, device), full_kv_pool_kwargs={},
                         swa_kv_pool_kwargs=_of_layer(page_size, shape, device))
        self.dtype = torch.uint8  # see OscarPool
        self.start_layer = first_in_bf16(sorted(serving.whole + windowed), serving.beside)

    def _refuse(self, *args, **kwargs):
        self.full_kv_pool._refuse()

    get_cpu_copy = load_cpu_copy = move_kv_cache = get_contiguous_buf_infos = host_pool_decls = _refuse


def _of_layer(page_size, layer, device):
    return dict(page_size=page_size, head_num=layer.tp_k_head_num, head_dim=layer.head_dim, v_head_dim=layer.v_head_dim, device=device,
                enable_memory_saver=False)


def _bf16(size, page_size, layer, layers, device):
    return MHATokenToKVPool(size=size, dtype=torch.bfloat16, layer_num=layers, **_of_layer(page_size, layer, device))


def first_in_bf16(layers, beside):
    """The layer that SGLang's backends ask for the size of values; a layer of ours has none to show. 0: none asks."""
    return next((place for place, index in enumerate(layers) if index in beside), 0)
