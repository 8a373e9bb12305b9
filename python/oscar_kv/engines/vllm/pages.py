"""Blocks of one size for layers of two kinds. vLLM gives all cache groups blocks of equal bytes. A BF16 layer stores
few tokens in such a block, a 2-bit layer stores `pages` pages of 64 tokens. Only integers here."""

import dataclasses
from collections.abc import Collection

from ...format.page_layout import PAGE_TOKENS
from ...format.windows import Tokens

FEWEST_PAGES = 8  # of a block whose layers have pages of different sizes: limits the unused part to an eighth


def nominal_cell(cells: Collection[int], pages: int = FEWEST_PAGES) -> int:
    """Bytes of a token and head for which a block of so many pages has room, if layers with these cells share its
    size."""
    widest = max(cells)
    if all(c == widest or pages * widest >= (pages + 1) * c for c in cells):
        return widest
    return -(-widest * (pages + 1) // pages)


def pages_of_block(page: int, cells: Collection[int], block_tokens: int, most_bytes_per_token: int) -> int:
    """Pages of a 2-bit layer in a block. page: nominal bytes of 64 tokens. block_tokens: vLLM's choice, which holds a
    state of linear attention. A block holds at least 64 tokens of a BF16 layer with most_bytes_per_token."""
    fewest = FEWEST_PAGES if len(set(cells)) > 1 else 1
    return max(fewest, -(-block_tokens // PAGE_TOKENS), -(-PAGE_TOKENS * most_bytes_per_token // page))


def tokens_of_block(block_bytes: int, bytes_per_token: int) -> int:
    """Tokens of a BF16 layer in a block: whole pages, so that all groups share prefixes of the same lengths."""
    return block_bytes // (bytes_per_token * PAGE_TOKENS) * PAGE_TOKENS


@dataclasses.dataclass(frozen=True)
class Places:
    """Pages of one layer inside blocks that another kind of layer also uses. vLLM numbers page j of block b as
    `pages` b + j. The kernels find page i at byte i page_bytes of the layer's memory. So the pages of a block start at
    the first multiple of page_bytes inside it."""

    pages: int  # of a block
    block_bytes: int
    page_bytes: int  # of all heads

    @property
    def direct(self) -> bool:
        """Whether vLLM's numbers are the kernels' numbers."""
        return self.pages * self.page_bytes == self.block_bytes

    def __call__(self, numbers: Tokens) -> Tokens:
        """The kernels' page numbers, in the dtype of vLLM's numbers (a tensor or an int)."""
        if self.direct:
            return numbers
        if isinstance(numbers, int):
            return -(-(numbers // self.pages) * self.block_bytes // self.page_bytes) + numbers % self.pages
        whole = numbers.long()
        block = whole // self.pages
        first = (block * self.block_bytes + self.page_bytes - 1) // self.page_bytes
        return (first + whole - block * self.pages).to(numbers.dtype)
