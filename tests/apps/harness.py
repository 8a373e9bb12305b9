"""What the end-to-end tests share: running the four commands, checking how they refuse, a tiny model, damaged copies."""
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import time

SOURCE_DIR = pathlib.Path(os.environ.get("OSCAR_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD_DIR = pathlib.Path(os.environ.get("OSCAR_BUILD_DIR", SOURCE_DIR / "build"))
SAMPLE = SOURCE_DIR / "sample_data"

DONE, GATE_FAILED, USAGE, BAD_INPUT, ENVIRONMENT, NUMERICAL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

# Signs of a crash instead of a refusal.
CRASH_MARKS = ("terminate called", "AddressSanitizer", "LeakSanitizer", "runtime error:", "Segmentation", "core dumped",
               "unexpected failure", "Exception raised from", "what():")


# What no message, table or report may hold: controls (but newline and tab), DEL, C1, characters that turn the direction of
# text or break lines, invisible ones, tags.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
                    "\U000e0000-\U000e007f]")


def unsafe(data):
    """Why these bytes may not be shown, or None: they must be UTF-8 without a character that a terminal obeys."""
    try:
        found = UNSAFE.search(data.decode())
    except UnicodeDecodeError as e:
        return f"not UTF-8: {data[max(0, e.start - 40):e.end + 40]!r}"
    return f"U+{ord(found[0]):04X} in {found.string[max(0, found.start() - 40):found.end() + 40]!r}" if found else None


class Result:
    """What one run printed; every run is asked whether it printed foreign bytes raw."""

    def __init__(self, arguments, done):
        self.arguments, self.code = arguments, done.returncode
        self.out, self.err = ((data or b"").decode(errors="replace") for data in (done.stdout, done.stderr))
        for name, data in (("stdout", done.stdout), ("stderr", done.stderr)):
            fault = unsafe(data or b"")
            assert fault is None, f"{name}: {fault}\n{self}"

    def __str__(self):
        return f"$ {' '.join(self.arguments)}\nexit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


def command(name, *arguments):
    program = BUILD_DIR / "bin" / f"oscar-{name}"
    assert program.exists(), f"{program} is not built"
    return [str(program), *map(str, arguments)]


def without_rights():
    """Root, too, then needs the permissions that a folder gives."""
    import ctypes

    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def run(name, *arguments, limit_file_size=None, timeout=300, **options):
    """Runs oscar-<name>. limit_file_size: writes beyond it fail (EFBIG), as under `ulimit -f`."""
    line = command(name, *arguments)

    def before():
        if limit_file_size is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_size, limit_file_size))

    options.setdefault("stdout", subprocess.PIPE)
    done = subprocess.run(line, stderr=subprocess.PIPE, timeout=timeout, stdin=subprocess.DEVNULL, preexec_fn=before, **options)
    return Result(line, done)


def phases_of(result):
    """{row: seconds} of the table behind "where the time went", the wall time included."""
    lines = result.err[result.err.index("where the time went:"):].splitlines()[1:]
    rows = (re.fullmatch(r"  (.+?) +(\d+\.\d{3}) s +\d+\.\d%", line) for line in lines)
    return {row[1]: float(row[2]) for row in rows if row}


def succeed(name, *arguments, **options):
    result = run(name, *arguments, **options)
    assert result.code == DONE, str(result)
    assert not result.errors(), str(result)
    return result


def refuse(code, name, *arguments, names=(), **options):
    """The command must end with `code` and exactly one error sentence that holds every word of `names`."""
    result = run(name, *arguments, **options)
    assert not any(mark in result.err for mark in CRASH_MARKS), str(result)
    assert result.code in (code if isinstance(code, tuple) else (code,)), str(result)
    errors = result.errors()
    assert len(errors) == 1, f"expected one error sentence\n{result}"
    assert len(errors[0]) > 20, f"not a sentence\n{result}"
    for word in [names] if isinstance(names, str) else names:
        assert str(word) in errors[0], f"the error does not name '{word}'\n{result}"
    return errors[0]


def tree(folder):
    """Every file below a folder with its hash: the same before and after means nothing was touched or left behind."""
    folder = pathlib.Path(folder)
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "folder"
        for p in sorted(folder.rglob("*"))
    }


# A random model of the sample family that loads in a moment: 2 layers, 4 query heads, 2 KV heads of size 64.
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 8192, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "hidden_act": "silu", "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_theta": 10000.0, "attention_bias": False, "sliding_window": None, "eos_token_id": 8189,
    "torch_dtype": "bfloat16",
}


def tensors_of(config, seed=1):
    import numpy

    random = numpy.random.default_rng(seed)
    hidden, mlp, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {
            p + "self_attn.q_proj.weight": (q, hidden), p + "self_attn.k_proj.weight": (kv, hidden),
            p + "self_attn.v_proj.weight": (kv, hidden), p + "self_attn.o_proj.weight": (hidden, q),
            p + "self_attn.q_norm.weight": (d,), p + "self_attn.k_norm.weight": (d,),
            p + "mlp.gate_proj.weight": (mlp, hidden), p + "mlp.up_proj.weight": (mlp, hidden),
            p + "mlp.down_proj.weight": (hidden, mlp), p + "input_layernorm.weight": (hidden,),
            p + "post_attention_layernorm.weight": (hidden,),
        }
    return {
        name: (numpy.ones(shape) + 0.1 * random.standard_normal(shape) if len(shape) == 1
               else 0.3 * random.standard_normal(shape)).astype(numpy.float16)
        for name, shape in shapes.items()
    }


def safetensors_bytes(tensors, header=None, pad=True):
    """tensors: name -> numpy array. header: a function that may change the header dictionary before it is written."""
    names = {"float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64"}
    entries, blobs, offset = {}, [], 0
    for name, array in sorted(tensors.items()):
        data = array.tobytes()
        entries[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    if header is not None:
        entries = header(entries) or entries
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def make_model(folder, seed=1, **changes):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors_of(config, seed)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        os.symlink(SAMPLE / "tiny-qwen3" / name, folder / name)
    return folder


def damaged_copy(source, target, name, content):
    """A copy of a folder (links for the untouched files) in which one file has other content."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        elif path.name != name:
            os.symlink(path.resolve(), target / path.name)
    if content is not None:
        (target / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


def catches(process, number):
    """Whether a running process has a handler for a signal. With sanitizers, on a slow machine, a command has none for more than a second."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


def stop_after(arguments, seconds, number):
    """(exit code, stdout, stderr) of a command that gets a signal so many seconds after its start, SIGINT not before it has a handler."""
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(seconds)
        while number == signal.SIGINT and process.poll() is None and not catches(process, number):
            time.sleep(.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, err


def short_sequences(model, folder):
    """A command of oscar-collect: 17 sequences of 4 to 96 tokens, the last one shortened, in 9 steps."""
    source = random.Random(3)
    rows = [{"input_ids": [source.randrange(8000) for _ in range(n)]} for n in (96, 40, 30, 200, 7, 90, 96, 4, 60, 33, 20, 100, 50, 90)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lambda output, *more, tokens=850: ["collect", "--model", model, "--prompts", folder / "rows.jsonl", "-o", output, "--tokens", tokens,
                                              "--seq-len", 96, "--rows", 50, "--far-pairs", "6,20", *more]
