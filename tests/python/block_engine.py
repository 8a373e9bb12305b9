"""A block manager that schedules at random, and what its requests should see: the tests of serving engines drive it."""
import collections
import dataclasses
import random

import torch

from cache_rows import cache_rows
from oscar_kv.cache.paged_kv import LayerCode
from oscar_kv.cache.prefix_table import PrefixTable
from oscar_kv.cache.slot_kv import SlotKV, SlotTable
from oscar_kv.cache.step_flush import StepFlush

SCALE = 0.25


@dataclasses.dataclass
class Request:
    total: int      # tokens when it ends
    seed: int
    prompt: int     # tokens that come in chunks
    slot: int = -1
    done: int = 0   # tokens in the cache
    blocks: list = dataclasses.field(default_factory=list)
    accepted: int = 10 ** 6  # of the new tokens of this pass: the others are proposals, which are taken back
    refused: int = 0   # proposals of the last pass that were taken back
    begun: bool = False  # it has had a pass since it got its slot
    own: int = 0     # tokens of others that it began with
    family: int = -1  # its first `shared` tokens are those of all requests of this family
    shared: int = 0


class Oracle:
    """Rows of a request as the tiers should hold them, and textbook attention in FP64."""

    def __init__(self, code, group):
        self.code, self.group, self.sinks = code, group, None  # sinks: logits [Hq]

    def tokens(self, request):
        """query [T, Hq, d], key and value [T, Hkv, d] of all tokens that the request will ever have."""
        heads, d = self.code.layer.kv_heads, self.code.layer.head_dim
        generator = torch.Generator().manual_seed(request.seed)
        own = [torch.randn(request.total, n, d, generator=generator) for n in (heads * self.group, heads, heads)]
        if request.shared > 0:
            generator = torch.Generator().manual_seed(10 ** 6 + request.family)
            for rows in own:
                rows[:request.shared] = torch.randn(512, *rows.shape[1:], generator=generator)[:request.shared]
        return [rows.bfloat16().float() for rows in own]  # as models on a GPU have them

    def stored(self, key, value, tokens, own=0):
        """What a query sees of a request of so many tokens: keys in the basis of the cache, values of the model, [Hkv, T, d] FP64.
        own: tokens before it are codes, even in the recent window."""
        code, transform = self.code, self.code.transform
        end = min(max(code.sink + max(0, tokens - code.sink - code.recent), own), max(tokens, code.sink))
        rows = cache_rows(transform, key[:tokens], value[:tokens], torch.arange(tokens))
        sides = []
        for codec, row in zip((code.key, code.value), rows):
            row = row.float().clone()
            coded = codec.decode(*codec.encode(row[code.sink:end])) if end > code.sink else row[:0]
            sides.append(torch.cat([row[:code.sink], coded, row[max(end, code.sink):]]))
        return sides[0].transpose(0, 1).double(), transform.outputs(sides[1].transpose(0, 1).unsqueeze(0))[0].double()

    def means(self, tokens):
        """[Hkv or 1, T, d]: what was subtracted from the keys."""
        transform = self.code.transform
        if transform.rotated_mean:
            return transform.mean_at(torch.arange(tokens)).transpose(0, 1).double()
        return torch.zeros(1, 1, self.code.layer.head_dim).double() if transform.key_mean is None else transform.key_mean[:, None].double()

    def attention(self, request, start, count, own=0):
        """[count, Hq, d] FP32 for the new tokens of one forward pass."""
        query, key, value = self.tokens(request)
        held = start + 1 if count == 1 else start
        q = query[start:start + count].transpose(0, 1).unflatten(0, (key.shape[1], self.group))  # [Hkv, g, T, d]
        parts, values = [], []
        if held > 0:
            keys, stored = self.stored(key, value, held, own)
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
        weights = logits.softmax(dim=-1)
        if self.sinks is not None:
            weights = weights * torch.sigmoid(logits.logsumexp(dim=-1) - self.sinks.double().view(-1, self.group, 1)).unsqueeze(-1)
        return (weights @ torch.cat(values, dim=1).unsqueeze(1)).flatten(0, 1).transpose(0, 1).float()


class Engine:
    """A block manager of `blocks` blocks and `slots` slots that schedules at random and may take a request's blocks away. most_new: new
    tokens of a decode step, all but the first of which may be taken back."""

    limit = 2e-4  # of an output's difference on the CPU

    def __init__(self, bundle, layer, blocks=40, slots=4, width=6, seed=1, device="cpu", group=2, phases=None, most_new=1):
        self.random, self.device, self.slots, self.width, self.most_new = random.Random(seed), device, slots, width, most_new
        self.rejected = 0
        self.oracle = Oracle(LayerCode(bundle, bundle.layers[layer], phases), group)
        code = LayerCode(bundle, bundle.layers[layer], phases, device)
        self.make_cache(code, blocks, group)
        generator = torch.Generator().manual_seed(seed)
        heads, cell = code.layer.kv_heads, max(1, code.page_bytes // 64)  # other requests' codes lie in every block
        memory = torch.zeros(blocks, heads, 64, cell, dtype=torch.int8)
        self.pool = self.kv.pool(memory.to(device))
        junk = torch.randint(0, 255, (blocks, heads, 64 * cell), dtype=torch.uint8, generator=generator)
        self.pool[:, :, :16] = junk[:len(self.pool), :, :min(16, self.pool.shape[2])].to(device) if self.pool.numel() else 0
        # As in an engine on a GPU: what leaves the windows is coded for all layers at once.
        self.flush = StepFlush({0: self.kv}, {0: self.pool}) if code.device.type == "cuda" and not code.without_kernels else None
        self.free_blocks, self.free_slots = list(range(1, blocks)), list(range(slots))
        self.random.shuffle(self.free_blocks)
        self.running, self.waiting, self.preempted, self.compared, self.kinds = [], [], 0, 0, set()

    def make_cache(self, code, blocks, group):
        self.kv = SlotKV(code, self.slots, self.width * 64, group, most_new=self.most_new)
        self.table = SlotTable(self.slots, self.kv.window_pages, self.device, self.most_new)

    def admit(self, request):
        """A request has got its slot."""

    def first(self, request, count, left):
        """New tokens of a request in its first pass, of `left` of its prompt."""
        return count

    def release(self, request):
        self.free_blocks += request.blocks
        self.random.shuffle(self.free_blocks)
        self.free_slots.append(request.slot)
        request.blocks, request.done, request.slot, request.refused, request.begun = [], 0, -1, 0, False
        self.running.remove(request)

    def grow(self, request, tokens):
        while len(request.blocks) < -(-tokens // 64):
            request.blocks.append(self.free_blocks.pop())

    def wrote(self, request, count):
        """The last `count` of request.done tokens are in the cache."""

    at_once = False  # a request that got its slot is in the pass
    steps_first = False  # requests with few tokens come first in a pass, as in vLLM
    calm = 0.0  # how often a pass of steps is followed by one of the same requests in the same order

    def schedule(self):
        """[(request, new tokens)] of the next forward pass."""
        again = [request for request, _ in getattr(self, "_scheduled", [])]
        if self.calm and again and self.random.random() < self.calm and all(r in self.running and r.done >= r.prompt for r in again):
            work = [(request, self.step(request)) for request in again]
            for request, count in work:
                request.accepted = self.random.randint(1, count)
        else:
            work = self.schedule_anew()
        if self.steps_first:
            work.sort(key=lambda one: one[1] > self.most_new)
        self._scheduled = work
        return work

    def schedule_anew(self):
        if self.running and self.preempted < 4 and self.random.random() < 0.3:
            victim = self.random.choice(self.running)
            self.release(victim)
            self.waiting.append(victim)
            self.preempted += 1
        while self.waiting and self.free_slots and self.random.random() < 0.7:
            request = self.waiting.pop(0)
            request.slot = self.free_slots.pop(self.random.randrange(len(self.free_slots)))
            self.admit(request)
            self.running.append(request)
        work, order = [], list(self.running)
        self.random.shuffle(order)
        for request in order:
            if self.random.random() < 0.2 and (request.begun or not self.at_once):
                continue
            left = request.prompt - request.done
            count = self.step(request) if left <= 0 else min(left, self.random.choice([1, 7, 30, 64, 100, 200]))
            count = count if request.begun else self.first(request, count, left)
            request.accepted = self.random.randint(1, count) if left <= 0 else count
            work.append((request, count))
        return work

    def step(self, request):
        """New tokens of a decode step, proposals included."""
        most = min(self.most_new, request.total - request.done)
        return self.random.choice([most, most, self.random.randint(1, most)])

    def new_rows(self, request, count):
        """query, key and value of the new tokens of a pass. Those of proposals that are taken back are of no request."""
        made = [rows[request.done:request.done + count].clone() for rows in self.oracle.tokens(request)]
        wrong = torch.Generator().manual_seed(request.done)
        for rows in made:
            rows[request.accepted:] = 3 * torch.randn(rows[request.accepted:].shape, generator=wrong).bfloat16().float()
        return made

    def expected(self, request, count):
        """Outputs of the new tokens that are kept. Tokens of a step are as of steps of their own."""
        if count > self.most_new:
            return self.oracle.attention(request, request.done, count, request.own)
        return torch.cat([self.oracle.attention(request, request.done + i, 1) for i in range(min(request.accepted, count))])

    def forward(self, work, padding=0, scattered=False):
        """One pass; compares the rows of every request. scattered: the block table is a part of a wider one."""
        heads, d = self.kv.code.layer.kv_heads, self.kv.code.layer.head_dim
        count, tokens = len(work) + padding, sum(n for _, n in work)
        padded = padding * work[0][1]  # tokens
        table = torch.full((count, self.width + 1 if scattered else self.width), 0, dtype=torch.int32)
        lengths, mapping, sides = torch.zeros(count, dtype=torch.int32), torch.full((tokens + padded,), -1, dtype=torch.int64), ([], [], [])
        at = 0
        for b, (request, n) in enumerate(work):
            self.grow(request, request.done + n)
            table[b, :len(request.blocks)] = torch.tensor(request.blocks, dtype=torch.int32)
            lengths[b] = request.done + n
            for i, p in enumerate(range(request.done, request.done + n)):
                mapping[at + i] = request.blocks[p // 64] * 64 + p % 64
            at += n
            for side, rows in zip(sides, self.new_rows(request, n)):
                side.append(rows)
        for side, h in zip(sides, (heads * self.oracle.group, heads, heads)):
            side.append(torch.full((padded, h, d), 3e4))  # what padding holds must not matter
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16  # as in an engine
        query, key, value = (torch.cat(side).to(self.device, dtype) for side in sides)
        table = table.to(self.device)[:, :self.width] if scattered else table.to(self.device)
        counts = [n for _, n in work]
        output = self.compute([r.slot for r, _ in work], [r.done for r, _ in work], counts, lengths.to(self.device), table,
                              mapping.to(self.device), query, key, value)
        self.kinds.add("decode" if max(counts) <= self.most_new else "mixed" if min(counts) <= self.most_new else "prefill")
        at = 0
        for request, n in work:
            expected = self.expected(request, n)
            found = output[at:at + len(expected)].cpu().float()
            # Kernels compute in BF16, and their sums in another order move a rare code by a step.
            on_cpu = self.device == "cpu"
            error, limit = (float((found - expected).abs().max()), self.limit) if on_cpu else (float((found - expected).norm() / expected.norm()), 3e-2)
            self.right(error, limit, f"{n} tokens after {request.done} in slot {request.slot}")
            kept = len(expected)
            request.done, request.refused, request.begun, at = request.done + kept, n - kept, True, at + n
            self.compared, self.rejected = self.compared + 1, self.rejected + n - kept
            self.wrote(request, kept)
            if request.done == request.total:
                self.release(request)

    @staticmethod
    def right(error, limit, what):
        assert error <= limit, f"{what}: {error}"

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        rows = self.table.rows(slots, starts, counts, lengths, table, mapping)
        output = torch.zeros_like(query)
        assert rows.only_steps or max(counts) > 1
        rows.flush = self.flush
        sinks = None if self.oracle.sinks is None else self.oracle.sinks.to(self.device)
        self.kv.forward(self.pool, rows, query, key, value, SCALE, output, sinks)
        return output

    def run(self, requests):
        self.waiting = list(requests)
        while self.waiting or self.running:
            work = self.schedule()
            if work:
                uniform = len({n for _, n in work}) == 1 and work[0][1] <= self.most_new
                room = self.slots - len(work)
                padding, scattered = (self.random.randint(0, room) if uniform else 0, self.random.random() < 0.3) if self.calm == 0 else (0, False)
                self.forward(work, padding, scattered)


class PrefixEngine(Engine):
    """Engine with prefix caching: whole blocks of known tokens are found again, shared while they are in use, and kept until their
    memory is needed. As an engine's adapter does, it offers blocks whose sink is kept, and a request computes its window itself, in one pass."""

    kept, at_once = 4, True  # sinks

    def make_cache(self, code, blocks, group):
        self.requests = collections.Counter()  # {slot: requests that had it}
        self.kv = SlotKV(code, self.slots, self.width * 64, group, self.most_new, self.kept)
        self.table = PrefixTable(self.slots, code.sink // 64, self.kv.tiers.layout.ring_pages, self.device, self.kept, code.recent, self.requests.__getitem__,
                                 self.most_new)
        self.users, self.block_of, self.key_of, self.reached = {}, {}, {}, {}
        self.hits = self.lost = self.coded = self.whole = 0

    @staticmethod
    def key(request, number):
        return ("family", request.family, number) if 64 * (number + 1) <= request.shared else ("own", request.seed, number)

    def admit(self, request):
        self.requests[request.slot] += 1
        request.prompt = max(request.prompt, self.reached.get(request.seed, 0))
        found = []
        for number in range((request.prompt - self.kv.code.recent) // 64):
            block = self.block_of.get(self.key(request, number))
            if block is None:
                break
            found.append(block)
        if found and not self.table.holds(torch.tensor(found[0], device=self.device)):
            self.forget(found[0])  # the copy that the request makes is found
            self.lost += 1
            found = []
        for block in found:
            if self.users.get(block, 0) == 0:
                self.free_blocks.remove(block)
            self.users[block] = self.users.get(block, 0) + 1
        self.hits += len(found)
        request.blocks = found
        request.done = request.own = 64 * len(found)

    def first(self, request, count, left):
        sink, recent = self.kv.code.sink, self.kv.code.recent
        return max(count, min(left, recent if request.done > 0 else self.random.choice([0, sink, sink])))

    def release(self, request):
        self.reached[request.seed] = request.done
        for block in request.blocks:
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free_blocks.insert(self.random.randrange(len(self.free_blocks) + 1), block)
        self.free_slots.append(request.slot)
        request.blocks, request.done, request.own, request.slot, request.refused, request.begun = [], 0, 0, -1, 0, False
        self.running.remove(request)

    def forget(self, block):
        if self.key_of.get(block) is not None:
            del self.block_of[self.key_of.pop(block)]

    def grow(self, request, tokens):
        while len(request.blocks) < -(-tokens // 64):
            block = self.free_blocks.pop()
            self.forget(block)
            self.users[block] = 1
            request.blocks.append(block)

    def expected(self, request, count):
        code = self.kv.code
        if count > self.most_new and request.done > code.sink:
            coded = request.own > self.kv.tiers.quantized_end(request.done)
            self.coded, self.whole = self.coded + coded, self.whole + (not coded)
        return super().expected(request, count)

    def wrote(self, request, count):
        for number in range(request.done // 64):
            key = self.key(request, number)
            if self.key_of.get(request.blocks[number]) is None and key not in self.block_of:
                self.block_of[key], self.key_of[request.blocks[number]] = request.blocks[number], key

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        rows = self.table.rows(slots, starts, counts, lengths, table, mapping)
        output = torch.zeros_like(query)
        if rows.sinks is not None:
            self.kv.restore(*rows.sinks)
        rows.flush = self.flush
        sinks = None if self.oracle.sinks is None else self.oracle.sinks.to(self.device)
        self.kv.forward(self.pool, rows, query, key, value, SCALE, output, sinks)
        return output


def families(seed, most, count=12):
    """Requests, most of which begin as one of two others do."""
    chosen = random.Random(seed)
    made = requests(seed, most, count)
    for request in made:
        request.family = chosen.choice([0, 1, 1])
        request.shared = min(chosen.choice([0, 130, 150, 200]), request.total)
    return made


def requests(seed, most, count=7):
    chosen = random.Random(seed)
    made = []
    for i in range(count):
        total = chosen.randint(20, most)
        made.append(Request(total, 100 * seed + i, max(1, total - chosen.randint(1, 12))))
    return made
