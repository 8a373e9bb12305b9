"""Gated delta nets in torch, in place of the kernels that SGLang's CPU engine takes from sgl_kernel.mamba. States are those of SGLang's
pool: the last tokens before a convolution [slots, channels, width - 1], and [slots, value heads, value channels, key channels]. Written
from the formulas of the model, token by token."""
import torch
import torch.nn.functional as F

CHUNK = 64

def _convolve(tokens, weight, bias, activation, past):
    """tokens [channels, T] after past [channels, width - 1]; the outputs, and the past of the next token."""
    joined = torch.cat([past.to(tokens.dtype), tokens], 1)
    found = F.conv1d(joined[None].float(), weight[:, None].float(), None if bias is None else bias.float(), groups=weight.shape[0])[0]
    return (F.silu(found) if activation == "silu" else found).to(tokens.dtype), joined[:, -past.shape[1]:]


def causal_conv1d_fn_cpu(x, weight, bias, activation, conv_states, has_initial_state, cache_indices, query_start_loc, seq_lens_cpu=None):
    found = torch.empty_like(x)
    for row, slot in enumerate(cache_indices.tolist()):
        start, end = query_start_loc[row:row + 2].tolist()
        past = conv_states[slot] if has_initial_state[row] else torch.zeros_like(conv_states[slot])
        found[:, start:end], conv_states[slot] = _convolve(x[:, start:end], weight, bias, activation, past)
    return found


def causal_conv1d_update_cpu(x, conv_states, weight, bias, activation, conv_state_indices):
    found = torch.empty_like(x)
    for row, slot in enumerate(conv_state_indices.tolist()):
        one, conv_states[slot] = _convolve(x[row][:, None], weight, bias, activation, conv_states[slot])
        found[row] = one[:, 0]
    return found


def fused_gdn_gating_cpu(A_log, a, b, dt_bias):
    """The logarithm of the decay, and the strength of what is written [1, T, value heads]."""
    return (-A_log.float().exp() * F.softplus(a.float() + dt_bias.float()))[None], b.float().sigmoid()[None]


def chunk_gated_delta_rule_cpu(q, k, v, g, beta, initial_state, cu_seqlens, initial_state_indices, head_first=False, use_qk_l2norm_in_kernel=True):
    """Outputs [1, T, value heads, value channels], None, and the states before each chunk of a sequence, which SGLang keeps for prefixes."""
    q, k = (F.normalize(x[0].float(), dim=-1, eps=1e-6).repeat_interleave(v.shape[2] // x.shape[2], 1) for x in (q, k))
    found, before = torch.empty_like(v[0], dtype=torch.float32), []
    for row, slot in enumerate(initial_state_indices.tolist()):
        state = initial_state[slot].float()
        start, end = cu_seqlens[row:row + 2].tolist()
        for t in range(start, end):
            if (t - start) % CHUNK == 0:
                before.append(state)
            state = state * g[0, t].exp()[:, None, None]
            change = beta[0, t][:, None] * (v[0, t].float() - torch.einsum("hvk,hk->hv", state, k[t]))
            state = state + change[:, :, None] * k[t][:, None]
            found[t] = torch.einsum("hvk,hk->hv", state, q[t]) * q.shape[-1] ** -0.5
        initial_state[slot] = state.to(initial_state.dtype)
    return found.to(v.dtype)[None], None, torch.stack(before)[None]


def fused_sigmoid_gating_delta_rule_update_cpu(A_log, dt_bias, q, k, v, a, b, initial_state_source, initial_state_indices, cu_seqlens,
                                               use_qk_l2norm_in_kernel=True, softplus_beta=1.0, softplus_threshold=20.0):
    g, beta = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    return chunk_gated_delta_rule_cpu(q, k, v, g, beta, initial_state_source, cu_seqlens, initial_state_indices)[0]


def rms_norm_gated(x, g, weight, bias, activation="swish", eps=1e-6, **other):
    normed = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)
    return (normed * (g.float().sigmoid() if activation == "sigmoid" else F.silu(g.float()))).to(x.dtype)


def gate_shared_expert(hidden, weight, shared, output, do_add):
    gated = (hidden @ weight).float().sigmoid()[:, None] * shared.float()
    output.copy_(output.float() + gated if do_add else gated)


def fused_sigmoid_mul_cpu(x, gate):
    x.mul_(gate.reshape(x.shape).sigmoid())


def fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, head_dim):
    return tuple(F.rms_norm(x.reshape(-1, head_dim).float(), (head_dim,), 1 + weight.float(), eps).to(x.dtype) for x, weight in ((q, q_weight), (k, k_weight)))


def fused_qk_gemma_rmsnorm_with_gate_cpu(q_gate, k, q_weight, k_weight, eps, head_dim, heads):
    q, gate = q_gate.reshape(-1, heads, 2 * head_dim).chunk(2, -1)
    return *fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, head_dim), gate.contiguous()


def fused_qkvzba_split_reshape_cat_contiguous_cpu(qkvz, ba, key_heads, value_heads, key_dim, value_dim):
    values = value_heads * value_dim
    b, a = ba.chunk(2, -1)
    return qkvz[:, :-values].contiguous(), qkvz[:, -values:].reshape(-1, value_heads, value_dim), b.contiguous(), a.contiguous()


def track_states(conv, ssm, rows, chosen, places, count, layers, conv_strides, *sizes):
    """Copies states of the chosen requests to other places of the pool."""
    kept = chosen[:count].bool()
    for states in (conv, ssm):
        states = states if conv_strides[0] else states[None]  # one layer has no axis
        states[:, places[:count][kept].long()] = states[:, rows[:count][kept].long()]


def install():
    """Where SGLang has a Triton kernel only. It then also keeps states of prefixes."""
    from sglang.kernels.ops.attention.fla import fused_norm_gate, layernorm_gated
    from sglang.kernels.ops.elementwise import elementwise
    from sglang.kernels.ops.mamba import mamba_state_scatter_triton
    from sglang.srt.arg_groups import mamba_hook
    torch.Tensor.pin_memory = lambda tensor, *device: tensor
    mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
    mamba_state_scatter_triton._launch_track_mamba_states = track_states
    layernorm_gated.layernorm_fn = lambda x, weight, bias, z, eps, activation, **other: rms_norm_gated(x, z, weight, bias, activation, eps)
    fused_norm_gate.rms_norm_gated, elementwise._launch_fused_gate_sigmoid_mul = rms_norm_gated, gate_shared_expert


# SGLang names these when it imports a model.
for one in (fused_gdn_gating_cpu, fused_sigmoid_gating_delta_rule_update_cpu, fused_sigmoid_mul_cpu, fused_qk_gemma_rmsnorm_cpu,
            fused_qk_gemma_rmsnorm_with_gate_cpu, fused_qkvzba_split_reshape_cat_contiguous_cpu):
    setattr(torch.ops.sgl_kernel, one.__name__, one)
