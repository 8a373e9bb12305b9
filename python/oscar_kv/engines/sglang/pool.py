"""The memory pool of SGLang with the pages of every layer: blocks of 64 tokens, [Hkv, page bytes] each, whose bytes may
differ by layer, and keys and values of layers that stay in BF16. The first block is SGLang's padding. What would copy
keys and values elsewhere is refused, because the BF16 windows are not in the pool."""

from typing import Any, NoReturn

import torch
from sglang.srt.mem_cache.memory_pool import KVCache, MHATokenToKVPool

from ...files.errors import InputError
from ...format.page_layout import PAGE_TOKENS
from .serving import Serving


class OscarPool(KVCache):
    """serving: serving.Serving with its caches allocated; size: tokens; layers: SGLang's ModelLayerInfo."""

    def __init__(self, serving: Serving, size: int, page_size: int, layers: Any, device: torch.device | str) -> None:
        # A dtype that no model's fused kernel writes: they ask for BF16.
        super().__init__(
            size,
            page_size,
            torch.uint8,
            layers.num_effective_layers,
            device,
            False,
            layers.start_layer,
            layers.end_layer,
        )
        self.serving, self.blocks = serving, size // PAGE_TOKENS + 1
        self.memory = {
            index: torch.zeros(
                (self.blocks, layer.tp_k_head_num, PAGE_TOKENS, serving.cells[index]), dtype=torch.uint8, device=device
            )
            for index, layer in serving.attention.items()
        }
        self.pages = {index: serving.kv(index).pool(memory) for index, memory in self.memory.items()}
        self._beside = {
            index: MHATokenToKVPool(
                size,
                page_size,
                torch.bfloat16,
                layer.tp_k_head_num,
                layer.head_dim,
                1,
                device,
                False,
                v_head_dim=layer.v_head_dim,
            )
            for index, layer in serving.in_pool.items()
        }
        # The layer that SGLang's backends ask for the size of values: one of ours has none to show.
        self.start_layer = min(self._beside, default=layers.start_layer)
        self._finalize_allocation_log(size)

    def get_kv_size_bytes(self) -> int:
        return sum(memory.numel() for memory in self.memory.values()) + sum(
            sum(pool.get_kv_size_bytes()) for pool in self._beside.values()
        )

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(
            "SGLang asks for the keys and values of the cache as tensors, which the 2-bit cache does not "
            "have; this feature is not served with oscar-kv"
        )

    def _bf16(self, index: int) -> Any:
        return self._beside.get(index) or self._refuse()

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self._bf16(layer_id).get_key_buffer(0)

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self._bf16(layer_id).get_value_buffer(0)

    def get_v_head_dim(self) -> int:
        return self.get_value_buffer(self.start_layer).shape[-1]

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._bf16(layer_id).get_kv_buffer(0)

    def set_kv_buffer(
        self,
        layer: Any,
        loc_info: Any,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: Any = None,
        v_scale: Any = None,
        layer_id_override: int | None = None,
    ) -> None:
        index = layer.layer_id if layer_id_override is None else layer_id_override
        self._bf16(index).set_kv_buffer(layer, loc_info, cache_k, cache_v, k_scale, v_scale, layer_id_override=0)

    get_cpu_copy = load_cpu_copy = move_kv_cache = get_contiguous_buf_infos = host_pool_decls = _refuse
