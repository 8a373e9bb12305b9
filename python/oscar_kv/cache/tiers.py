"""The three tiers of one layer (sink, pages, recent window) on tensors that the caller owns: how rows enter them and
how queries read them. A token after the sink is quantized once, when it comes, and its BF16 copy stays while it is in
the recent window. The caller assigns pages and windows to sequences: PagedKV for a batch of sequences, SlotKV for the
requests of a serving engine.

Letters: B sequences, Hkv KV heads, Hq query heads, d head size, T tokens, N rows."""

import dataclasses
from collections.abc import Sequence

import torch

from ..format.page_layout import PAGE_TOKENS
from ..format.window_layout import WindowLayout, element_places
from ..format.windows import Policy, Tokens, quantized_end, ring_pages
from ..ops import operators, reference, support
from ..ops.rule import ALL, Rule
from .layer_code import LayerCode


@dataclasses.dataclass
class Held:
    """The storage of B sequences in one layer."""

    pool: torch.Tensor  # [pages, Hkv, bytes] uint8
    table: torch.Tensor  # [B, P] int32: entry i is the page with tokens from sink + 64 i on
    windows: torch.Tensor  # [window pages, Hkv, 128 d] BF16
    window_table: torch.Tensor  # [B, window pages of a sequence] int32
    lengths: torch.Tensor  # [B] int32 tokens; 0: the sequence is skipped


class Tiers:
    """pages: in the ring, if the caller needs more than the minimum."""

    def __init__(self, code: LayerCode, pages: int | None = None) -> None:
        self.code = code
        places = element_places(code.layer.head_dim)
        self.layout = WindowLayout(places, code.sink, pages or ring_pages(code.recent, 1)).to(code.device)
        self.step_unsupported = code.without_kernels or support.step_unsupported(code)

    def new_windows(self, sequences: int, sinks: int = 0) -> torch.Tensor:
        """Windows for this many sequences, and then for so many sinks: [sequences * window pages + sinks * sink pages,
        Hkv, 128 d]."""
        pages = sequences * self.layout.pages + sinks * self.layout.sink_pages
        shape = (pages, self.code.layer.kv_heads, self.layout.elements)
        return torch.zeros(shape, dtype=torch.bfloat16, device=self.code.device)

    def decode_unsupported(self, group: int, rule: Rule = ALL) -> str | None:
        return (
            self.code.without_kernels
            or support.decode_unsupported(self.code, group, self.layout.pages)
            or support.rule_unsupported(rule)
        )

    def quantized_end(self, tokens: Tokens) -> Tokens:
        """Tokens [sink, end) of a sequence of `tokens` tokens are codes."""
        return quantized_end(tokens, self.code.sink, self.code.recent)

    def policy(self) -> Policy:
        """The policy for planning chunks."""
        return Policy(self.code.sink, self.code.recent, self.layout.ring_pages)

    def pages_of(self, tokens: int) -> int:
        """Pages of a sequence of `tokens` tokens: all after the sink have codes, which queries read once they are no
        longer in the window."""
        return -(-max(0, tokens - self.code.sink) // PAGE_TOKENS)

    @torch.no_grad()
    def step(
        self,
        held: Held,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        bad: torch.Tensor,
        rule: Rule = ALL,
        space: torch.Tensor | None = None,
        flushes: bool = True,
    ) -> torch.Tensor:
        """Appends one new token of every sequence, query [B, Hq, d], key and value [B, Hkv, d], then attends.
        held.lengths already counts it. Reads nothing back, and no tensor outlives the call, so it may be captured
        into a CUDA graph. flushes: false if the caller flushes. Returns output [B, Hq, d] FP32."""
        code, transform = self.code, self.code.transform
        mean = transform.key_mean
        if transform.rotated_mean:
            raw = query.float()
            key = key.float() - transform.mean_at((held.lengths - 1).clamp(min=0))
            query, value, mean = raw, value.float(), None
        heads = code.layer.kv_heads
        coded = operators.run(
            operators.append_tokens, code.view(**vars(held), query=query, key=key, value=value, key_mean=mean)
        )
        if flushes:
            self.flush_tokens(held, bad)
        coded = coded.view(coded.shape[0], heads, -1, coded.shape[-1])
        raw = query.view(coded.shape)
        output, lse = self.decode(held, coded, raw, scale, rule, rule.sinks is not None, space)
        output = transform.outputs(output).view(query.shape)
        if rule.sinks is None:
            return output
        lse = self._of_model(lse, raw, scale, rule).reshape(output.shape[:-1])
        return rule.with_sinks(output.unsqueeze(2), lse.unsqueeze(2)).squeeze(2)

    def flush_tokens(self, held: Held, bad: torch.Tensor) -> None:
        """Writes the newest token of each sequence from its window into its page."""
        operators.run(operators.flush_tokens, self.code.view(**vars(held), bad=bad))

    def _of_model(self, lse: torch.Tensor, raw: torch.Tensor, scale: float, rule: Rule) -> torch.Tensor:
        """Log-sum-exp of the model's own logits, which the mean key shifts. The shift is equal for all keys, so it
        changes no weight unless logits are capped; in that case it is already included."""
        shift = None if rule.cap else self.code.transform.shift(raw)
        return lse if shift is None else lse + shift * scale

    def _by_reference(
        self, held: Held, coded: torch.Tensor, raw: torch.Tensor, positions: torch.Tensor, scale: float, rule: Rule
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """reference.attention of query rows [B, Hkv, R, d] at positions [B, R]."""
        code, transform, lengths = self.code, self.code.transform, held.lengths.long()
        turned, phases = transform.phase_queries(raw), code.phases()
        view = code.view(**vars(held)).but(
            lengths=lengths, query=coded.float(), turned=turned, phases=phases, scale=float(scale)
        )
        return reference.attention(
            view, positions, self.quantized_end(lengths), rule, transform.shift(raw) if rule.cap else None
        )

    def decode(
        self,
        held: Held,
        coded: torch.Tensor,
        raw: torch.Tensor,
        scale: float,
        rule: Rule,
        want_lse: bool,
        space: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode attention of queries [B, Hkv, g, d] in the cache basis, without the rule's sinks; raw: the model's
        queries. space: the kernel's workspace, if the caller owns it."""
        code, group = self.code, raw.shape[2]
        if support.rule_unsupported(rule) is not None:
            return self._by_reference(
                held, coded, raw, (held.lengths.long() - 1)[:, None].expand(-1, group), scale, rule
            )
        unsupported = self.decode_unsupported(group)
        turned = code.transform.phase_queries(raw)
        if unsupported is not None:
            space = torch.empty(0, dtype=torch.uint8, device=code.device)
        elif space is None:
            space = code.shared.workspace(
                coded,
                coded.shape[-1],
                group,
                coded.shape[0],
                coded.shape[1],
                0 if turned is None else support.page_queries(held.table.shape[1], held.window_table.shape[1]),
            )
        view = code.view(
            **vars(held),
            query=coded,
            turned=turned,
            phases=code.phases(),
            workspace=space,
            tile_phases=code.tile_phases(unsupported is None),
            scale=float(scale),
            window=rule.window,
            want_lse=want_lse,
        )
        if not raw.is_cuda:
            return operators.run(operators.decode_attention, view)
        if unsupported is not None:
            return reference.decode_attention(view)
        return operators.run(operators.decode_attention, view.but(query=coded.bfloat16()))

    @torch.no_grad()
    def attend(
        self, held: Held, query: torch.Tensor, scale: float, new: Sequence[int] | None = None, rule: Rule = ALL
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """query [B, Hq, T, d] of the model, after RoPE, attends to everything that the sequences hold.

        new: None if the query belongs to the last appended token (T = 1). Otherwise query i of sequence b has
        position lengths[b] + i, and its token is not yet appended. Returns output [B, Hq, T, d] FP32 and log-sum-exp
        [B, Hq, T], both without the rule's sinks. Sinks count once over all parts of a softmax (rule.with_sinks())."""
        code, (batch, heads, tokens, d) = self.code, query.shape
        kv_heads, transform = code.layer.kv_heads, code.transform
        q = query.reshape(batch, kv_heads, -1, d)  # query head h reads KV head h / group
        if new is None:
            output, lse = self.decode(held, transform.queries(q), q, scale, rule, True)
        else:
            lengths = held.lengths.long()
            positions = (lengths[:, None] + torch.arange(tokens, device=code.device)).repeat(1, heads // kv_heads)
            output, lse = self._by_reference(held, transform.queries(q), q, positions, scale, rule)
        return transform.outputs(output).view(query.shape), self._of_model(lse, q, scale, rule).view(query.shape[:-1])
