"""What of config.json identifies a model, for every family that bundles are made for: geometry, positions, windows, experts.
lib/checkpoint/model_config.cpp, rope_config.cpp and families/ are the definition; tests compare the two on every family."""
import dataclasses
import math

from .errors import InputError, quoted
from .strict_json import Fields

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")
GLOBAL, LOCAL, NO_ROPE = range(3)  # of a layer: which rotary parameters, or none


@dataclasses.dataclass(frozen=True)
class Family:
    """Where config.json is silent. heads, kv_heads, vocabulary, intermediate, head_dim None: the key is required, or follows from others."""
    architecture: str
    model_type: str
    head_dim: int = None
    heads: int = None
    kv_heads: int = None
    vocabulary: int = None
    intermediate: int = None
    most_positions: int = 2048
    rms_eps: float = 1e-6
    eps_key: str = "rms_norm_eps"
    theta: float = 10000.0
    tied: bool = False
    partial: float = 1.0          # partial_rotary_factor
    interleaved: bool = False     # channel 2j turns with 2j + 1
    sliding: str = "none"         # none | every layer | by layer | switched | pattern
    window: int = 4096
    pattern: int = 2              # all layers slide but each so-many-th
    experts: tuple = None         # count, per token, intermediate (None: that of the model)
    normalised: bool = True       # of an absent norm_topk_prob, where the family reads it; weights of experts sum to 1
    caps: tuple = None            # Gemma: soft caps of attention and of the last logits; 0: none
    layered_theta: tuple = None   # Gemma 3, OLMo 3: rotary base of full and of sliding layers; None: that of full ones
    linear: bool = False          # layers of linear attention
    wrapper: tuple = None         # architecture and model_type of the multimodal model around it


ROWS = (
    Family("LlamaForCausalLM", "llama"),
    Family("MistralForCausalLM", "mistral", kv_heads=8, most_positions=131072, sliding="every layer",
           wrapper=("Mistral3ForConditionalGeneration", "mistral3")),
    Family("Qwen2ForCausalLM", "qwen2", kv_heads=32, most_positions=32768, sliding="by layer"),
    Family("Qwen3ForCausalLM", "qwen3", head_dim=128, kv_heads=32, most_positions=32768, sliding="by layer"),
    Family("Qwen3MoeForCausalLM", "qwen3_moe", kv_heads=4, most_positions=32768, sliding="switched", experts=(128, 8, 768),
           normalised=False),
    Family("MixtralForCausalLM", "mixtral", kv_heads=8, most_positions=131072, rms_eps=1e-5, theta=1e6, sliding="every layer",
           window=0, experts=(8, 2, None)),
    Family("Gemma2ForCausalLM", "gemma2", head_dim=256, heads=8, kv_heads=4, vocabulary=256000, most_positions=8192, tied=True,
           sliding="pattern", caps=(50.0, 30.0)),
    Family("Gemma3ForCausalLM", "gemma3_text", head_dim=256, heads=8, kv_heads=4, vocabulary=262208, most_positions=131072,
           tied=True, sliding="pattern", pattern=6, caps=(0.0, 0.0), layered_theta=(1e6, 1e4),
           wrapper=("Gemma3ForConditionalGeneration", "gemma3")),
    Family("GptOssForCausalLM", "gpt_oss", head_dim=64, kv_heads=8, most_positions=131072, rms_eps=1e-5, theta=150000.0,
           sliding="pattern", window=128, experts=(128, 4, None)),
    Family("Glm4ForCausalLM", "glm4", head_dim=128, kv_heads=2, most_positions=131072, rms_eps=0.00000015625, partial=0.5,
           interleaved=True),
    Family("Phi3ForCausalLM", "phi3", most_positions=4096, rms_eps=1e-5, sliding="every layer", window=0),
    Family("Olmo2ForCausalLM", "olmo2", rms_eps=1e-5),
    Family("SmolLM3ForCausalLM", "smollm3", kv_heads=4, most_positions=32768, theta=2000000.0, tied=True),
    Family("SeedOssForCausalLM", "seed_oss", head_dim=128, kv_heads=8, most_positions=524288),
    Family("GraniteForCausalLM", "granite"),
    Family("Olmo3ForCausalLM", "olmo3", rms_eps=1e-5, sliding="pattern", pattern=4, layered_theta=(500000.0, None)),
    Family("Exaone4ForCausalLM", "exaone4", kv_heads=32, rms_eps=1e-5, sliding="pattern", pattern=4),
    Family("Ernie4_5ForCausalLM", "ernie4_5", head_dim=128, kv_heads=2, most_positions=131072, rms_eps=1e-5, theta=500000.0,
           tied=True, interleaved=True),
    Family("Cohere2ForCausalLM", "cohere2", most_positions=8192, rms_eps=1e-5, eps_key="layer_norm_eps", tied=True,
           interleaved=True, sliding="pattern", pattern=4),
    Family("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", rms_eps=1e-5),
    Family("Glm4MoeForCausalLM", "glm4_moe", kv_heads=8, most_positions=131072, rms_eps=1e-5, partial=0.5, experts=(128, 8, 1408)),
    Family("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", kv_heads=4, most_positions=131072, rms_eps=1e-5, theta=500000.0, tied=True,
           interleaved=True, experts=(64, 6, 1536)),
    Family("MiniMaxM2ForCausalLM", "minimax_m2", head_dim=128, kv_heads=8, most_positions=196608, theta=5000000.0,
           experts=(256, 8, None)),
    Family("Qwen3NextForCausalLM", "qwen3_next", head_dim=256, heads=16, kv_heads=2, vocabulary=151936, intermediate=5632,
           most_positions=32768, partial=0.25, experts=(512, 10, 512), linear=True),
    Family("Qwen3_5ForCausalLM", "qwen3_5_text", head_dim=256, heads=16, kv_heads=4, vocabulary=248320, intermediate=12288,
           most_positions=32768, partial=0.25, linear=True, wrapper=("Qwen3_5ForConditionalGeneration", "qwen3_5")),
    Family("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", head_dim=256, heads=16, kv_heads=2, vocabulary=248320, intermediate=512,
           most_positions=32768, partial=0.25, experts=(256, 8, 512), linear=True,
           wrapper=("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")),
    Family("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", rms_eps=1e-5, experts=(1, 1, None)),
    Family("Llama4ForCausalLM", "llama4_text", head_dim=128, heads=40, kv_heads=8, vocabulary=202048, intermediate=8192,
           most_positions=131072, rms_eps=1e-5, theta=500000.0, interleaved=True, experts=(16, 1, None), normalised=False,
           wrapper=("Llama4ForConditionalGeneration", "llama4")),
    Family("Ministral3ForCausalLM", "ministral3", head_dim=128, heads=32, kv_heads=8, vocabulary=131072, intermediate=14336,
           most_positions=262144, rms_eps=1e-5, sliding="every layer", window=0,
           wrapper=("Mistral3ForConditionalGeneration", "mistral3")),
    Family("Gemma4ForCausalLM", "gemma4_text", head_dim=256, heads=8, kv_heads=4, vocabulary=262144, most_positions=131072,
           tied=True, sliding="pattern", window=512, pattern=6, layered_theta=(1e6, 1e4), experts=(1, 1, 1),
           wrapper=("Gemma4ForConditionalGeneration", "gemma4")),
    Family("Gemma4UnifiedForCausalLM", "gemma4_unified_text", head_dim=256, heads=8, kv_heads=4, vocabulary=262144,
           most_positions=262144, tied=True, sliding="pattern", window=1024, pattern=6, layered_theta=(1e6, 1e4),
           wrapper=("Gemma4UnifiedForConditionalGeneration", "gemma4_unified")),
)


# One vector of these is key and value at once, which no cache of oscar_kv holds.
LATENT = {"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM",
          "glm4_moe_lite": "Glm4MoeLiteForCausalLM"}


# Where config.json has other names for the number of experts and of those that a token gets.
EXPERT_KEYS = {"glm4_moe": ("n_routed_experts", "num_experts_per_tok"), "ernie4_5_moe": ("moe_num_experts", "moe_k"),
               "hunyuan_v1_moe": ("num_experts", "moe_topk"), "gemma4_text": ("num_experts", "top_k_experts")}


GEMMA4 = ("gemma4_text", "gemma4_unified_text")

# Of a config.json of Gemma 4 without a word about RoPE.
GEMMA4_ROPE = dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
                   sliding_attention=dict(rope_type="default", rope_theta=1e4))

# Of a config.json of Ministral 3 without a word about RoPE.
MINISTRAL_ROPE = dict(rope_type="yarn", rope_theta=1000000.0, factor=16.0, original_max_position_embeddings=16384, mscale=1.0,
                      mscale_all_dim=1.0, llama_4_scaling_beta=0.1)


@dataclasses.dataclass
class Rope:
    """One set of rotary parameters: number of the type, truncate, share of the channels that turn, and the numbers theta,
    factor, low, high, original length, beta_fast, beta_slow, attention factor."""
    kind: int
    truncate: bool
    partial: float
    numbers: list
    factors: list = ()  # longrope: the short ones, then the long ones

    def text(self):
        return f"rope {self.kind}" + (" 1 " if self.truncate else " 0 ") + "".join(f"{_number(x)} " for x in self.numbers)


def _number(value):
    return "%.17g" % value


def family_of(config, where):
    """(row, is it inside its multimodal wrapper)."""
    fields = Fields(config, where)
    names, kind = config.get("architectures"), fields.text("model_type", "")
    name = names[0] if names else kind
    for row in ROWS:
        if name in (row.architecture, row.model_type):
            return row, False
        inside = config.get("text_config")
        kind_inside = inside.get("model_type", row.model_type) if isinstance(inside, dict) else row.model_type
        if row.wrapper and name in row.wrapper and kind_inside == row.model_type:
            return row, True
    if name in LATENT or name in LATENT.values():
        raise InputError(f"{where}: {quoted(name)} has latent attention, which caches one vector for key and value; oscar_kv does "
                         "not serve it: oscar-collect and oscar-fit take such a model")
    raise InputError(f"{where}: the architecture {quoted(name)} is not one that bundles are made for; those are "
                     f"{', '.join(row.architecture for row in ROWS)}")


def _windows(fields, family, layers):
    if family.sliding == "none":
        return [0] * layers
    window, first = fields.value.get("sliding_window", family.window) or 0, 0
    if family.sliding in ("by layer", "switched") and not fields.flag("use_sliding_window", False):
        window = 0
    if family.sliding == "by layer":
        first = fields.integer("max_window_layers", default=28)
    slides = [window > 0 and i >= first for i in range(layers)]
    types = None if family.sliding == "switched" else fields.value.get("layer_types")
    if types:
        slides = [t == "sliding_attention" for t in types]
    elif family.sliding == "pattern":
        pattern = fields.integer("sliding_window_pattern", default=family.pattern)
        slides = [(i + 1) % pattern != 0 for i in range(layers)]
    if family.model_type in GEMMA4:
        slides[-1] = False  # whatever layer_types says
    return [window if s else 0 for s in slides]


def _rope(fields, rope, theta, partial, most_positions):
    """Of the object `rope`; `fields` holds the keys beside it."""
    given = Fields(rope, f"{fields.where}, rope_parameters")
    theta = given.number("rope_theta", theta)
    partial = given.number("partial_rotary_factor", fields.number("partial_rotary_factor", partial))
    kind = given.text("rope_type", given.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise InputError(f"{fields.where}: the rope type {quoted(kind)} is not supported; supported are {', '.join(ROPE_TYPES)}")
    factor, low, high, original, fast, slow, attention, truncate = 1.0, 1.0, 4.0, 0, 32.0, 1.0, 1.0, True
    if kind in ("llama3", "yarn", "longrope"):
        name = "original_max_position_embeddings"
        original = fields.integer(name, default=given.integer(name, default=most_positions))
    if kind == "dynamic":
        original = most_positions
    if kind in ("linear", "llama3", "dynamic"):
        factor = given.number("factor")
    if kind == "proportional":
        factor = given.number("factor", 1.0)
    if kind == "llama3":
        low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
    factors = []
    if kind == "longrope":
        factors = [float(x) for key in ("short_factor", "long_factor") for x in rope[key]]
        factor = given.number("factor", most_positions / original)
        attention = given.number("attention_factor", math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0)
    if kind == "yarn":
        factor = given.number("factor", most_positions / original)
        fast, slow = given.number("beta_fast", 0) or 32.0, given.number("beta_slow", 0) or 1.0
        truncate = given.flag("truncate", True)

        def temperature(scale):
            return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

        scale, all_dim = given.number("mscale", 0.0), given.number("mscale_all_dim", 0.0)
        both = temperature(scale) / temperature(all_dim) if scale and all_dim else temperature(1.0)
        attention = given.number("attention_factor", both)
    return Rope(ROPE_TYPES.index(kind), truncate, partial, [theta, factor, low, high, original, fast, slow, attention], factors)


def _hunyuan_rope(fields, rope, theta):
    """A fixed stretch of the base, which config.json calls dynamic, as plain parameters."""
    alpha = rope.get("alpha") if rope.get("rope_type", rope.get("type")) == "dynamic" else None
    if not alpha:
        return rope
    width = fields.integer("head_dim", default=fields.integer("hidden_size") // fields.integer("num_attention_heads"))
    return dict(rope_type="default", rope_theta=rope.get("rope_theta", theta) * alpha ** (width / (width - 2)))


def _ropes(fields, family, most_positions):
    """Of the model, and of its local layers."""
    config, plain = fields.value, Rope(0, True, 1.0, [10000.0, 1.0, 1.0, 4.0, 0, 32.0, 1.0, 1.0])
    if family.layered_theta is None:
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if family.model_type == "ministral3" and not rope:
            rope = MINISTRAL_ROPE
        if family.model_type == "gpt_oss" and not rope:
            rope = dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                        original_max_position_embeddings=4096)
        theta, partial = fields.number("rope_theta", family.theta), family.partial
        if family.model_type in ("hunyuan_v1_dense", "hunyuan_v1_moe"):
            rope = _hunyuan_rope(fields, rope, theta)
        if family.model_type == "minimax_m2" and config.get("rotary_dim"):
            partial = fields.integer("rotary_dim") / fields.integer("head_dim", default=family.head_dim)
        return _rope(fields, rope, theta, partial, most_positions), plain
    parameters = config.get("rope_parameters") or (GEMMA4_ROPE if family.model_type in GEMMA4 else {})
    full = dict(parameters.get("full_attention") or {}) | (config.get("rope_scaling") or {})
    sliding = dict(parameters.get("sliding_attention") or {})
    theta = fields.number("rope_theta", family.layered_theta[0])
    local_theta = theta if family.layered_theta[1] is None else family.layered_theta[1]
    if family.model_type in GEMMA4 and full.get("rope_type", "default") == "default":
        full.pop("partial_rotary_factor", None)  # which then is not read
    return (_rope(fields, full, theta, 1.0, most_positions),
            _rope(fields, sliding, fields.number("rope_local_base_freq", local_theta), 1.0, most_positions))


def linear_layers(fields, layers):
    """Which layers have linear attention instead of a KV cache."""
    types = fields.value.get("layer_types")
    if types:
        return [kind == "linear_attention" for kind in types]
    interval = fields.integer("full_attention_interval", default=4)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _layer_ropes(fields, family, windows):
    if family.layered_theta:
        return [LOCAL if w else GLOBAL for w in windows]
    if family.model_type == "cohere2" or (family.model_type == "exaone4" and fields.value.get("sliding_window", 1) is not None):
        return [GLOBAL if w else NO_ROPE for w in windows]
    if family.model_type not in ("smollm3", "llama4_text"):
        return []
    turns, interval = fields.value.get("no_rope_layers"), fields.integer("no_rope_layer_interval", default=4)
    turns = turns[:len(windows)] if turns else [(i + 1) % interval != 0 for i in range(len(windows))]
    return [GLOBAL if t else NO_ROPE for t in turns]


def _experts_text(fields, family, layers, intermediate):
    count, each, size = family.experts
    if family.model_type == "hunyuan_v1_moe":  # published files repeat a number for each layer
        lists = {key: value[0] for key in ("num_experts", "moe_topk") if isinstance(value := fields.value.get(key), list) and value}
        fields = Fields(fields.value | lists, fields.where)
    for key in ("num_local_experts", "num_experts", EXPERT_KEYS.get(family.model_type, ("num_experts",))[0]):
        count = fields.integer(key, default=count)
    for key in ("num_experts_per_tok", EXPERT_KEYS.get(family.model_type, ("", "num_experts_per_tok"))[1]):
        each = fields.integer(key, default=each)
    sparse, normalised, gain, limit = [True] * layers, family.normalised, 1.702, 7.0
    if family.model_type in ("qwen3_moe", "qwen3_next"):
        normalised = fields.flag("norm_topk_prob", family.normalised)
        step = fields.integer("decoder_sparse_step", default=1)
        dense = fields.value.get("mlp_only_layers") or []
        sparse = [(i + 1) % step == 0 and i not in dense for i in range(layers)]
    if family.model_type == "gpt_oss":
        gain, limit = fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)
    if family.model_type == "llama4_text":
        intermediate = fields.integer("intermediate_size", default=family.intermediate)
        step = fields.integer("interleave_moe_layer_step", default=1)
        listed = fields.value.get("moe_layers")
        sparse = [(i + 1) % step == 0 if listed is None else i in listed for i in range(layers)]
    size = intermediate if size is None else fields.integer("moe_intermediate_size", default=size)
    groups, shared, scaling, least = (1, 1), 0, 1.0, 0.0
    if family.model_type == "glm4_moe":
        normalised = fields.flag("norm_topk_prob", True)
        first = fields.integer("first_k_dense_replace", default=1)
        sparse = [i >= first for i in range(layers)]
        groups = fields.integer("n_group", default=1), fields.integer("topk_group", default=1)
        shared = fields.integer("n_shared_experts", default=1) * size
        scaling, least = fields.number("routed_scaling_factor", 1.0), 1e-20
    if family.model_type in ("hunyuan_v1_moe", "llama4_text"):
        shared = size
    if family.model_type in GEMMA4:
        shared = intermediate
    if family.linear:
        shared = fields.integer("shared_expert_intermediate_size", default=512)
    if family.model_type == "ernie4_5_moe":
        first, last = fields.integer("moe_layer_start_index", default=1), fields.integer("moe_layer_end_index", default=-1)
        step = fields.integer("moe_layer_interval", default=1)
        sparse = [(i + 1) % step == 0 and first <= i <= (layers - 1 if last == -1 else last) for i in range(layers)]
        shared, least = fields.integer("moe_num_shared_experts", default=2) * size, fields.number("moe_norm_min", 1e-12)
    text = (f"experts {count} {each} {size}" + (" normalised " if normalised else " plain ") + f"{_number(gain)} {_number(limit)}"
            + "".join(" 1" if s else " 0" for s in sparse) + "\n")
    if (*groups, shared, scaling, least) != (1, 1, 0, 1.0, 0.0):
        text += f"routing {groups[0]} {groups[1]} {shared} {_number(scaling)} {_number(least)}\n"
    return text


def _position_text(fields, family, layer_ropes):
    """Chunks, and queries that are scaled by their position."""
    if family.model_type == "ministral3":
        rope = fields.value.get("rope_scaling") or fields.value.get("rope_parameters") or MINISTRAL_ROPE
        given = Fields(rope, f"{fields.where}, rope_parameters")
        length = given.integer("original_max_position_embeddings")
        return f"queries {_number(given.number('llama_4_scaling_beta'))} {_number(length)}\n"
    if family.model_type != "llama4_text":
        return ""
    size = fields.value.get("attention_chunk_size", 8192) or 0
    types = fields.value.get("layer_types") or ["chunked_attention" if kind == GLOBAL else "full" for kind in layer_ropes]
    text = "chunks" + "".join(f" {size if kind == 'chunked_attention' else 0}" for kind in types)
    text += " unit\n" if fields.flag("use_qk_norm", True) else "\n"
    if fields.flag("attn_temperature_tuning", True):
        text += f"queries {_number(fields.number('attn_scale', 0.1))} {_number(fields.number('floor_scale', 8192.0))}\n"
    return text


def _gemma4_sizes(fields, windows):
    """(KV heads, head size) of layers that see all, and of those with a window."""
    config = fields.value
    sliding = fields.integer("num_key_value_heads", default=4), fields.integer("head_dim", default=256)
    by_layer, full = config.get("per_layer_config"), sliding
    if by_layer is not None:
        own = by_layer.get(str(len(windows) - 1), {})  # the last layer sees all
        full = own.get("num_key_value_heads", sliding[0]), own.get("head_dim", sliding[1])
    else:
        heads = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
        full = heads or sliding[0], config.get("global_head_dim") or 512
    return full, sliding


def _shared_caches_text(fields, windows, intermediate):
    """How wide the MLPs of layers are that read another's keys and values, and whose each layer reads."""
    shared = fields.value.get("num_kv_shared_layers") or 0
    if shared:
        first = len(windows) - shared
        sources = [i if i < first else next(j for j in reversed(range(first)) if bool(windows[j]) == bool(window))
                   for i, window in enumerate(windows)]
        wide = 2 * intermediate if fields.flag("use_double_wide_mlp", False) else 0
        return f"caches {wide}" + "".join(f" {source}" for source in sources) + "\n"
    return ""


def _gemma4_text(fields, family, windows, intermediate):
    full, sliding = _gemma4_sizes(fields, windows)
    text = "" if full == sliding else f"local heads {sliding[0]} {sliding[1]}\n"
    if fields.flag("attention_k_eq_v", False):
        text += "keys as values\n"
    text += _shared_caches_text(fields, windows, intermediate)
    width = fields.value.get("hidden_size_per_layer_input", 256) if family.model_type == "gemma4_text" else 0
    if width:
        text += f"layer embeddings {width}\n"
    text += "scale 1\n"
    cap = fields.value.get("final_logit_softcapping")
    return text + (f"caps 0 {_number(float(cap))}\n" if cap else "")


def _family_text(fields, family, rope, local, windows, layers, intermediate):
    """Facts that only some families have."""
    text = ""
    if rope.partial != 1.0 or family.interleaved:
        text += "turning " + _number(rope.partial) + (" pairs\n" if family.interleaved else "\n")
    if rope.factors:
        text += "factors" + "".join(f" {_number(x)}" for x in rope.factors) + "\n"
    layer_ropes = _layer_ropes(fields, family, windows)
    if layer_ropes:
        text += "local " + local.text() + "\nlayers" + "".join(f" {kind}" for kind in layer_ropes) + "\n"
    if family.model_type in GEMMA4:
        text += _gemma4_text(fields, family, windows, intermediate)
    text += _position_text(fields, family, layer_ropes)
    if family.caps is not None:
        text += "scale " + _number(1.0 / math.sqrt(fields.number("query_pre_attn_scalar", 256.0))) + "\n"
        keys = ("attn_logit_softcapping", "final_logit_softcapping")
        caps = [float(fields.value.get(key, cap) or 0.0) for key, cap in zip(keys, family.caps)]
        if any(caps):
            text += f"caps {_number(caps[0])} {_number(caps[1])}\n"
    if family.model_type == "granite":
        keys = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
        scale, embedding, residual, logits = (fields.number(key, 1.0) for key in keys)
        text += f"scale {_number(scale)}\nmultipliers {_number(embedding)} {_number(residual)} {_number(1.0 / logits)}\n"
    if family.model_type == "cohere2":
        text += f"multipliers 1 1 {_number(fields.number('logit_scale', 0.0625))}\n"
    if family.linear:
        sizes = (("num_key_heads", 16), ("num_value_heads", 32), ("key_head_dim", 128), ("value_head_dim", 128),
                 ("conv_kernel_dim", 4))
        text += "linear" + "".join(f" {fields.integer('linear_' + key, default=size)}" for key, size in sizes)
        text += "".join(f" {int(linear)}" for linear in linear_layers(fields, layers)) + "\n"
    if family.experts is not None and (family.model_type not in GEMMA4 or fields.flag("enable_moe_block", False)):
        text += _experts_text(fields, family, layers, intermediate)
    return text


def geometry_text(config, where):
    """The text of a configuration that its fingerprint begins with: v4 and v5 spellings give the same."""
    family, wrapped = family_of(config, where)
    if wrapped and isinstance(config.get("text_config"), dict):
        config = {k: v for k, v in config.items() if k not in ("model_type", "architectures")} | config["text_config"]
    fields = Fields(config, where)
    layers, hidden = fields.integer("num_hidden_layers"), fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads", default=... if family.heads is None else family.heads)
    kv_heads = heads if "num_key_value_heads" in config or family.kv_heads is None else family.kv_heads
    kv_heads = fields.integer("num_key_value_heads", default=kv_heads)
    head_dim = fields.integer("head_dim", default=family.head_dim or hidden // heads)
    vocabulary = fields.integer("vocab_size", default=... if family.vocabulary is None else family.vocabulary)
    intermediate = fields.integer("intermediate_size", default=... if family.intermediate is None else family.intermediate)
    if family.model_type == "llama4_text":
        intermediate = fields.integer("intermediate_size_mlp", default=16384)
    windows = _windows(fields, family, layers)
    if family.model_type in GEMMA4:
        (kv_heads, head_dim), _ = _gemma4_sizes(fields, windows)
    sizes = [layers, hidden, intermediate, vocabulary, heads, kv_heads, head_dim]
    rope, local = _ropes(fields, family, fields.integer("max_position_embeddings", default=family.most_positions))
    text = "oscar-fingerprint-1\n" + family.architecture + "\n" + "".join(f"{n} " for n in sizes)
    tied = fields.flag("tie_word_embeddings", family.tied)
    text += _number(fields.number(family.eps_key, family.rms_eps)) + (" tied\n" if tied else " untied\n")
    text += rope.text() + "\nwindows" + "".join(f" {w}" for w in windows) + "\n"
    return text + _family_text(fields, family, rope, local, windows, layers, intermediate)
