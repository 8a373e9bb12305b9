"""Where oscar-fit spends bits: made checkpoints whose right answer is known."""
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from twin_checkpoints import collect, id_rows, save, widths  # noqa: E402

GROWTH = 500.0
HIDDEN, HEADS, DIM = 128, 2, 64


def checkpoint(folder, grown):
    """Two layers. The stream keeps almost all of its length in channels that attention does not write to, the same for
    every token. grown: the MLP of layer 0 adds GROWTH - 1 times the stream to itself, and what layer 1 writes is as much
    larger: seen through the norms, nothing has changed."""
    config = transformers.LlamaConfig(
        vocab_size=8192, hidden_size=HIDDEN, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, head_dim=DIM, max_position_embeddings=4096, tie_word_embeddings=False, mlp_bias=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=None, rms_norm_eps=1e-6)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(11)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    half = HIDDEN // 2
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0) if "norm" in name else parameter.zero_()
        signs = torch.sign(normal(8192, half))
        model.model.embed_tokens.weight[:, :half] = signs * 3.0  # every token as long as every other
        decay = torch.linspace(1.5, 0.1, DIM).repeat(HEADS)[:, None]
        for i, layer in enumerate(model.model.layers):
            attention = layer.self_attn
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight[:, :half] = normal(HEADS * DIM, half) * half**-0.5 * decay
            attention.o_proj.weight[half:] = normal(half, HEADS * DIM) * (0.02 if i == 0 else 0.03)
            if grown and i == 1:
                attention.o_proj.weight.mul_(GROWTH)
        if grown:
            mlp = model.model.layers[0].mlp  # silu(30) = 30; the norm gives x / rms(x), rms(x) = 3 / sqrt(2)
            mlp.gate_proj.bias.fill_(30.0)
            mlp.up_proj.weight.copy_(torch.eye(HIDDEN))
            mlp.down_proj.weight.copy_(torch.eye(HIDDEN) * (GROWTH - 1.0) / 30.0 * 3.0 * 0.5**0.5)
    return save(model, folder)


@pytest.fixture(scope="module")
def twins(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("twins")
    rows = id_rows(folder / "rows.jsonl", 5, 400)
    out = {grown: collect(tool, checkpoint(folder / f"model-{grown}", grown), rows, folder / f"s-{grown}", "16,64") for grown in (False, True)}
    return folder, out


def test_an_mlp_that_multiplies_the_stream_changes_no_allocation(tool, twins):
    folder, statistics = twins
    for bits in (1.0, 2.25):
        plain, grown = (widths(tool, folder, statistics[g], bits) for g in (False, True))
        assert plain == grown
        assert any(plain[0][0]) and any(plain[0][1])  # layer 0 is worth bits, on both sides


def test_the_stream_is_measured_before_the_mlp(twins):
    safetensors = pytest.importorskip("safetensors.numpy")
    _, statistics = twins
    plain, grown = (safetensors.load_file(statistics[g]) for g in (False, True))
    size = lambda s, name: float(s[name].reshape(-1)[0])
    assert size(grown, "layers.0.attention_residual") == pytest.approx(size(plain, "layers.0.attention_residual"), rel=1e-4)
    assert size(grown, "layers.0.residual_energy") == pytest.approx(GROWTH**2 * size(plain, "layers.0.residual_energy"), rel=0.02)
