"""vLLM's attention backend OSCAR for latent attention (MLA), with the interfaces of vLLM 0.33
(model_executor/layers/attention/mla_attention.py there). Prompts run vLLM's own path; what it reads of earlier tokens
comes from the packed pages and the BF16 windows. Steps run latent_kv.LatentKV in absorbed form."""

import dataclasses
from typing import Any

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    accumulate_mla_context_chunk,
    init_mla_context_partial,
)
from vllm.v1.attention.backend import AttentionCGSupport

from ...cache.latent_kv import LatentKV
from ...cache.packed import sent
from ...cache.rows import Rows
from ...files.errors import InputError
from ...format.latent_layout import CHANNELS, ROW
from ...format.windows import quantized_end
from . import backend as adapter
from .backend import BoundPages, OscarMetadata, OscarMetadataBuilder, OscarPages


class OscarLatentBackend(OscarPages, MLACommonBackend):
    @staticmethod
    def get_impl_cls() -> type["OscarLatentImpl"]:
        return OscarLatentImpl

    @staticmethod
    def get_builder_cls() -> type["OscarLatentBuilder"]:
        return OscarLatentBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [ROW]


@dataclasses.dataclass
class OscarLatentMetadata(MLACommonMetadata[Any]):
    own: OscarMetadata | None = None
    ends: torch.Tensor | None = None  # of prompts with stored tokens: latent_operators.latent_past


class OscarLatentBuilder(MLACommonMetadataBuilder[OscarLatentMetadata]):
    """vLLM's plan of a pass, and the same as SlotTable sees it. Both take requests with one new token for steps."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, OscarLatentMetadata)
        self._rows = OscarMetadataBuilder(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> OscarLatentMetadata:
        made = super().build(common_prefix_len, common_attn_metadata, fast_build)
        made.own = self._rows.build(common_prefix_len, common_attn_metadata, fast_build)
        if made.prefill is not None and made.prefill.chunked_context is not None:
            bundle, ends = self._rows.serving.bundle, [0] * made.num_reqs
            for chunk in made.own.rows.chunks:
                coded = max(quantized_end(chunk.start, bundle.sink, bundle.recent), chunk.own)
                ends[chunk.row] = min(coded, chunk.start)
            made.ends = sent([ends], self.device)[0].int()
        return made


class OscarLatentImpl(BoundPages, MLACommonImpl[OscarLatentMetadata]):
    """One layer. latent_layers.py tells its index."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.supports_quant_query_input = False
        self.serving = adapter.serving_of(adapter.get_current_vllm_config())
        self.index = -1
        self.absorbed: dict[str, torch.Tensor] = {}  # latent_layers.absorb
        self._new: tuple[torch.Tensor, torch.Tensor] | None = None  # latents and RoPE parts of this pass

    def cache(self, device: torch.device) -> LatentKV:
        if self._cache is None:
            self._cache = self.serving.latent_cache(self.index, self.num_heads, device)
        return self._cache

    def reserve_workspace(self) -> None:
        """In the profile run, which counts the windows of all layers."""
        self.cache(next(self.kv_b_proj.parameters()).device)

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        return False

    def do_kv_cache_update(self, *_: Any) -> None:
        """vLLM calls it before attention. Tokens enter the cache with attention: a prompt's chunk attends to its
        past before its tokens overwrite the ring's oldest."""

    def receive(self, latents: torch.Tensor, rope: torch.Tensor) -> None:
        """The new rows of all tokens of a pass, before attention: [N, 512] and [N, 1, 64]."""
        self._new = latents.contiguous(), rope.flatten(1)

    def _pass(self, metadata: OscarLatentMetadata) -> tuple[Rows, torch.Tensor, torch.Tensor]:
        if metadata.own is None or self._new is None:
            raise InputError("vLLM runs latent attention otherwise than the release that oscar-kv was written for")
        return metadata.own.of(self.serving.places(self.index)), *self._new

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: OscarLatentMetadata, layer: Any
    ) -> tuple[torch.Tensor, None]:
        """Steps: q is (latent queries [S, H, 512], RoPE queries [S, H, 64]), the former in the cache basis, as are the
        sums of latents that it returns (latent_layers.absorb)."""
        rows, latents, rope = self._pass(attn_metadata)
        query, rope_query = q if isinstance(q, tuple) else q.split([CHANNELS, q.shape[-1] - CHANNELS], dim=-1)
        if rows.steps is None or rows.steps.tokens != slice(0, len(query)):
            raise InputError(f"vLLM has {len(query)} tokens of steps, which are not the first of the batch")
        cache, pool = self.cache(query.device), self.pool(kv_c_and_k_pe_cache)
        found = cache.attend_step(pool, rows.steps, query, rope_query, latents, rope, self.scale)
        cache.flush(pool, rows)
        return found, None

    def forward_mha(
        self,
        q: torch.Tensor,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: OscarLatentMetadata,
        *arguments: Any,
        **named: Any,
    ) -> None:
        """Prompts: vLLM's path; then their tokens enter the cache."""
        super().forward_mha(q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, *arguments, **named)
        rows, latents, rope = self._pass(attn_metadata)
        if sum(chunk.count for chunk in rows.chunks) != len(q):
            raise InputError(f"vLLM has {len(q)} tokens of prompts, which are not those of the batch")
        cache = self.cache(q.device)
        work = rows.work(cache.policy, 0)
        assert work.new is not None  # every prompt has new tokens
        if not isinstance(work.tokens, slice):
            latents, rope = latents[work.tokens], rope[work.tokens]
        cache.enter(self.pool(kv_c_and_k_pe_cache), work.new, latents, rope)

    def _compute_prefill_context(
        self,
        q: torch.Tensor,
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: OscarLatentMetadata,
        k_scale: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of prompts to their stored tokens, which are read into vLLM's workspace part by part."""
        prefill, rows = attn_metadata.prefill, self._pass(attn_metadata)[0]
        assert prefill is not None and prefill.chunked_context is not None and prefill.prefill_backend is not None
        assert attn_metadata.ends is not None
        context, found = prefill.chunked_context, None
        cache, pool = self.cache(q.device), self.pool(kv_c_and_k_pe_cache)
        for part in context.chunks:
            count, of = part.num_context_tokens, part.request_slice
            requests = slice(attn_metadata.num_decodes + of.start, attn_metadata.num_decodes + of.stop)
            past = context.workspace[:count]
            cache.past(
                pool,
                output=past,
                table=rows.table[requests],
                window_table=rows.window_table[requests],
                sequence=part.token_to_seq[:count].int(),
                firsts=part.cu_seq_lens[:-1].int(),
                starts=part.starts.int(),
                ends=attn_metadata.ends[requests],
            )
            both = self.kv_b_proj(past[:, :CHANNELS].contiguous())[0]
            both = both.view(-1, self.num_heads, self.qk_nope_head_dim + self.v_head_dim)
            nope, value = both.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            output, lse = prefill.prefill_backend.run_prefill_context_chunk(
                chunk=part,
                q=q[part.token_slice],
                k=self._concat_k_nope_k_pe(nope, past[:, CHANNELS:].unsqueeze(1)),
                v=value,
            )
            if found is None:
                found = init_mla_context_partial(context, output, lse, num_tokens=len(q))
            accumulate_mla_context_chunk(part, output, lse, *found)
        assert found is not None
        return found
