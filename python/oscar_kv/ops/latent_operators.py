"""The operators of latent attention (MLA), as operators.py declares the others: rows [N, 512] BF16 with their RoPE
parts, rope [N, 64] BF16. pool [pages, bytes] uint8 has pages of format/latent_layout.py, with room after each; windows
[window pages, 36864] BF16. matrix [512, 512]; kernels take terms [2, 512, 512] (kernel_matrix()). sigma [1, 4], clip
[1]; bad [2], of which the second is not written; code: RowCode.numbers()."""

import torch

from ..format.latent_layout import CHANNELS, matrix_operand
from . import latent_reference
from .chunk_reference import split_matrix
from .operators import _declare


def kernel_matrix(matrix: torch.Tensor) -> torch.Tensor:
    """[512, 512] as the operators of the matrix's device take it."""
    return matrix_operand(split_matrix(matrix[None])[0]) if matrix.is_cuda else matrix


# Writes the newest row of each sequence into its window, (rows - mean) matrix; lengths [B] counts it.
latent_append = _declare(
    "latent_append",
    "(Tensor(a!) windows, Tensor window_table, Tensor lengths, Tensor rows, Tensor rope, Tensor? mean, Tensor matrix, "
    "int sink) -> ()",
    latent_reference.latent_append,
)

# Writes the newest token of each sequence from its window into its page. Kernels do it for all layers of a step:
# flush_layers.
latent_flush = _declare(
    "latent_flush",
    "(Tensor(a!) pool, Tensor windows, Tensor window_table, Tensor table, Tensor lengths, Tensor sigma, Tensor clip, "
    "Tensor(b!) bad, int sink, bool search, int[] code) -> ()",
    latent_reference.latent_flush,
)

# As describe_layer: writes the descriptor of one layer, side [SIDE_BYTES] uint8 on the CPU.
describe_latent = _declare(
    "describe_latent",
    "(Tensor(a!) side, Tensor pool, Tensor windows, Tensor sigma, Tensor clip, Tensor bad, int[] code) -> ()",
    None,
    instead="; latent_flush serves one layer",
)
# Writes new rows of prompts into windows and pages, as given by runs [R, 6] (tables.NEW_RUN).
latent_new = _declare(
    "latent_new",
    "(Tensor(a!) pool, Tensor(b!) windows, Tensor rows, Tensor rope, Tensor runs, Tensor? mean, Tensor matrix, Tensor "
    "sigma, Tensor clip, Tensor(c!) bad, bool search, int[] code) -> ()",
    latent_reference.latent_new,
)

# Reads stored tokens into output [.., 576], rows in the model's basis: their number is that of sequence [N], the
# request of each. firsts, starts [R]: the first row of a request, and its position; ends [R]: the first token after the
# sink that is not read as a code. matrix: out of the cache basis; mean is added afterwards.
latent_past = _declare(
    "latent_past",
    "(Tensor(a!) output, Tensor pool, Tensor table, Tensor windows, Tensor window_table, Tensor sequence, Tensor "
    "firsts, Tensor starts, Tensor ends, Tensor? mean, Tensor matrix, Tensor sigma, int sink, int[] code) -> ()",
    latent_reference.latent_past,
)

# Softmax attention of each sequence's newest token over the three tiers: query [B, Hq, 512] in the cache basis and
# rope_query [B, Hq, 64], BF16. Returns BF16 [B, Hq, 512] in the cache basis, plus after [512]; 0 for a sequence of
# length 0.
latent_decode = _declare(
    "latent_decode",
    "(Tensor query, Tensor rope_query, Tensor pool, Tensor table, Tensor windows, Tensor window_table, Tensor lengths, "
    "Tensor sigma, Tensor? after, Tensor(a!) workspace, float scale, int sink, int recent, int[] code) -> Tensor",
    latent_reference.latent_decode,
    lambda a: a.query.new_empty((*a.query.shape[:2], CHANNELS), dtype=torch.bfloat16),
)

# Bytes that latent_decode needs on the device of `like` for batches up to this one.
latent_workspace_bytes = _declare(
    "latent_workspace_bytes", "(Tensor like, int batch, int heads) -> int", lambda a: 0, lambda a: 0
)
