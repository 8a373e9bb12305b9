"""A block manager that schedules at random, and what its requests should see: the tests of serving engines drive it."""
import dataclasses
import random

import torch

from oscar_kv.paged_kv import LayerCode
from oscar_kv.slot_kv import SlotKV, SlotTable

SCALE = 0.25


@dataclasses.dataclass
class Request:
    total: int      # tokens when it ends
    seed: int
    prompt: int     # tokens that come in chunks
    slot: int = -1
    done: int = 0   # tokens in the cache
    blocks: list = dataclasses.field(default_factory=list)


class Oracle:
    """Rows of a request as the tiers should hold them, and textbook attention in FP64."""

    def __init__(self, code, group):
        self.code, self.group = code, group

    def tokens(self, request):
        """query [T, Hq, d], key and value [T, Hkv, d] of all tokens that the request will ever have."""
        heads, d = self.code.layer.kv_heads, self.code.layer.head_dim
        generator = torch.Generator().manual_seed(request.seed)
        return [torch.randn(request.total, n, d, generator=generator) for n in (heads * self.group, heads, heads)]

    def stored(self, key, value, tokens):
        """What a query sees of a request of so many tokens: keys in the basis of the cache, values of the model, [Hkv, T, d] FP64."""
        code, transform = self.code, self.code.transform
        end = code.sink + max(0, tokens - code.sink - code.recent)
        rows = transform.key_rows(key[:tokens], torch.arange(tokens)), transform.value_rows(value[:tokens])
        sides = []
        for codec, row in zip((code.key, code.value), rows):
            row = row.float()
            coded = codec.decode(*codec.encode(row[code.sink:end])) if end > code.sink else row[:0]
            sides.append(torch.cat([row[:code.sink], coded, row[max(end, code.sink):]]))
        return sides[0].transpose(0, 1).double(), transform.outputs(sides[1].transpose(0, 1).unsqueeze(0))[0].double()

    def means(self, tokens):
        """[Hkv or 1, T, d]: what was subtracted from the keys."""
        transform = self.code.transform
        if transform.rotated_mean:
            return transform.mean_at(torch.arange(tokens)).transpose(0, 1).double()
        return torch.zeros(1, 1, self.code.layer.head_dim).double() if transform.key_mean is None else transform.key_mean[:, None].double()

    def attention(self, request, start, count):
        """[count, Hq, d] FP32 for the new tokens of one forward pass."""
        query, key, value = self.tokens(request)
        held = start + 1 if count == 1 else start
        q = query[start:start + count].transpose(0, 1).unflatten(0, (key.shape[1], self.group))  # [Hkv, g, T, d]
        parts, values = [], []
        if held > 0:
            keys, stored = self.stored(key, value, held)
            turned = self.code.transform.queries(q.flatten(1, 2)[None])[0].unflatten(1, q.shape[1:3])
            turned = turned.bfloat16().double() if count == 1 else turned.double()  # a decode step has its query in BF16
            parts.append(turned @ keys.unsqueeze(1).transpose(-1, -2) + q.double() @ self.means(held).unsqueeze(1).transpose(-1, -2))
            values.append(stored)
        if count > 1:
            own = [x[start:start + count].transpose(0, 1).double() for x in (key, value)]
            parts.append(q.double() @ own[0].unsqueeze(1).transpose(-1, -2))
            values.append(own[1])
        logits = torch.cat(parts, dim=-1) * SCALE
        logits.masked_fill_(torch.arange(logits.shape[-1]) > torch.arange(start, start + count)[:, None], -torch.inf)
        return (logits.softmax(dim=-1) @ torch.cat(values, dim=1).unsqueeze(1)).flatten(0, 1).transpose(0, 1).float()


class Engine:
    """A block manager of `blocks` blocks and `slots` slots that schedules at random and may take a request's blocks away."""

    def __init__(self, bundle, layer, blocks=40, slots=4, width=6, seed=1, device="cpu", group=2, phases=None):
        self.random, self.device, self.slots, self.width = random.Random(seed), device, slots, width
        self.oracle = Oracle(LayerCode(bundle, bundle.layers[layer], phases), group)
        code = LayerCode(bundle, bundle.layers[layer], phases, device)
        self.kv = SlotKV(code, slots, width * 64, group)
        self.table = SlotTable(slots, self.kv.window_pages, device)
        generator = torch.Generator().manual_seed(seed)
        heads, cell = code.layer.kv_heads, code.page_bytes // 64  # other requests' codes lie in every block
        memory = torch.zeros(blocks, heads, 64, cell, dtype=torch.int8)
        self.pool = self.kv.pool(memory.to(device))
        junk = torch.randint(0, 255, (blocks, heads, 64 * cell), dtype=torch.uint8, generator=generator)
        self.pool[:, :, :16] = junk[:, :, :16].to(device)
        self.free_blocks, self.free_slots = list(range(1, blocks)), list(range(slots))
        self.random.shuffle(self.free_blocks)
        self.running, self.waiting, self.preempted, self.compared, self.kinds = [], [], 0, 0, set()

    def release(self, request):
        self.free_blocks += request.blocks
        self.random.shuffle(self.free_blocks)
        self.free_slots.append(request.slot)
        request.blocks, request.done, request.slot = [], 0, -1
        self.running.remove(request)

    def grow(self, request, tokens):
        while len(request.blocks) < -(-tokens // 64):
            request.blocks.append(self.free_blocks.pop())

    def schedule(self):
        """[(request, new tokens)] of the next forward pass."""
        if self.running and self.preempted < 4 and self.random.random() < 0.3:
            victim = self.random.choice(self.running)
            self.release(victim)
            self.waiting.append(victim)
            self.preempted += 1
        while self.waiting and self.free_slots and self.random.random() < 0.7:
            request = self.waiting.pop(0)
            request.slot = self.free_slots.pop(self.random.randrange(len(self.free_slots)))
            self.running.append(request)
        work, order = [], list(self.running)
        self.random.shuffle(order)
        for request in order:
            if self.random.random() < 0.2:
                continue
            left = request.prompt - request.done
            count = 1 if left <= 0 else min(left, self.random.choice([1, 7, 30, 64, 100, 200]))
            work.append((request, count))
        return work

    def forward(self, work, padding=0, scattered=False):
        """One pass; compares the rows of every request. scattered: the block table is a part of a wider one."""
        heads, d = self.kv.code.layer.kv_heads, self.kv.code.layer.head_dim
        count, tokens = len(work) + padding, sum(n for _, n in work)
        table = torch.full((count, self.width + 1 if scattered else self.width), 0, dtype=torch.int32)
        lengths, mapping, sides = torch.zeros(count, dtype=torch.int32), torch.full((tokens + padding,), -1, dtype=torch.int64), ([], [], [])
        at = 0
        for b, (request, n) in enumerate(work):
            self.grow(request, request.done + n)
            table[b, :len(request.blocks)] = torch.tensor(request.blocks, dtype=torch.int32)
            lengths[b] = request.done + n
            for i, p in enumerate(range(request.done, request.done + n)):
                mapping[at + i] = request.blocks[p // 64] * 64 + p % 64
            at += n
            for side, rows in zip(sides, self.oracle.tokens(request)):
                side.append(rows[request.done:request.done + n])
        for side, h in zip(sides, (heads * self.oracle.group, heads, heads)):
            side.append(torch.full((padding, h, d), 3e4))  # what padding holds must not matter
        query, key, value = (torch.cat(side).to(self.device) for side in sides)
        table = table.to(self.device)[:, :self.width] if scattered else table.to(self.device)
        counts = [n for _, n in work]
        output = self.compute([r.slot for r, _ in work], [r.done for r, _ in work], counts, lengths.to(self.device), table,
                              mapping.to(self.device), query, key, value)
        self.kinds.add("decode" if max(counts) == 1 else "mixed" if min(counts) == 1 else "prefill")
        at = 0
        for request, n in work:
            expected, found = self.oracle.attention(request, request.done, n), output[at:at + n].cpu()
            error = float((found - expected).abs().max())
            limit = 2e-4 if self.device == "cpu" else 2e-2  # the kernel's queries are BF16
            assert error <= limit, f"{n} tokens after {request.done} in slot {request.slot}: {error}"
            request.done, at, self.compared = request.done + n, at + n, self.compared + 1
            if request.done == request.total:
                self.release(request)

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        rows, output = self.table.rows(slots, starts, counts, lengths, table, mapping), torch.zeros_like(query)
        assert (rows.single is None) == (max(counts) == 1)
        self.kv.forward(self.pool, rows, query, key, value, SCALE, output)
        return output

    def run(self, requests):
        self.waiting = list(requests)
        while self.waiting or self.running:
            work = self.schedule()
            if work:
                single = all(n == 1 for _, n in work)
                room = self.slots - len(work)
                self.forward(work, self.random.randint(0, room) if single else 0, self.random.random() < 0.3)


def requests(seed, most, count=7):
    chosen = random.Random(seed)
    made = []
    for i in range(count):
        total = chosen.randint(20, most)
        made.append(Request(total, 100 * seed + i, max(1, total - chosen.randint(1, 12))))
    return made
