"""Rows of a cache as tests compare them: the model's in the cache's basis, and those that pages hold."""
from oscar_kv.ops import operators, reference


def cache_rows(transform, key, value, positions):
    """Keys and values [T, Hkv, d] of the model at positions [T], BF16 in the basis of the cache."""
    mean = transform.mean_at(positions) if transform.rotated_mean else transform.key_mean
    return (reference.rotate_rows(key, mean, transform.key_forward),
            reference.rotate_rows(value, transform.value_mean, transform.value_forward))


def coded_rows(kv, begin, end):
    """Quantized tokens of pages [begin, end) of every sequence of a PagedKV, FP32 in the basis of the cache: [B, Hkv, T, d] twice."""
    runs = operators.page_runs(kv.table.tensor(kv.code.device)[:, begin:end], kv.pool.shape[0])
    rows = reference.dequantize(kv.code.view(pool=kv.pool), runs)
    return tuple(r.unflatten(0, (kv.batch, -1)).transpose(1, 2) for r in rows)
