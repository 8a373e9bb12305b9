"""The order of cache methods on the made checkpoint of latent_checkpoint.py: collects, fits, verifies, prints a table.

    python tests/oracles/latent_order.py DIR [--rank 512 --rotated 64] [--device cuda]"""
import argparse
import json
import pathlib
import subprocess

import latent_checkpoint

SOURCE_DIR = pathlib.Path(__file__).parents[2]


def group_bits(width):
    """Of uniform 2-bit codes in groups of 64 channels, or of the whole row where 64 does not divide it."""
    return 2.5 if width % 64 == 0 else 2 + 32 / width


def fits(width):
    """name -> options of oscar-fit. waterfill gets the bits of the others, and fewer."""
    same = group_bits(width)
    return {"oscar-b": ["--method", "oscar", "--bits", same], "balanced-b": ["--method", "balanced", "--bits", same],
            "waterfill-b": ["--method", "waterfill", "--bits", same], "waterfill-225": ["--method", "waterfill", "--bits", 2.25],
            "waterfill-15": ["--method", "waterfill", "--bits", 1.5], "waterfill-1": ["--method", "waterfill", "--bits", 1]}


def measured(width):
    """name -> bits of waterfill with widths by measured curves of the vectors."""
    return {"measured-b": group_bits(width), "measured-15": 1.5, "measured-1": 1.0}


def run(tool, folder, rank=128, rotated=32, device="cpu", windows=(64, 256), context=2048, sequences=8, tokens=30000, path="prefill",
        curve_sequences=8):
    """Rows of the report by (id, path), and the report. tool(program, *arguments) runs a program."""
    sample = SOURCE_DIR / "sample_data"
    model = latent_checkpoint.make(folder / "model", sample / "tiny-qwen3", rank, rotated)
    on = ["--device", device, "--dtype", "float32", "-q"]
    tool("oscar-collect", "--model", model, "--prompts", sample / "prompts.jsonl", "-o", folder / "s.safetensors", "--tokens", tokens,
         "--seq-len", context, "--far-pairs", ",".join(map(str, windows)), *on)
    shared = ["oscar-fit", folder / "s.safetensors", "--windows", ",".join(map(str, windows)), "--device", device, "-q"]
    for name, options in fits(rank + rotated).items():
        tool(*shared, "-o", folder / name, *options)
    # Curves are of the calibration prompts, measured once for all budgets.
    budgets = measured(rank + rotated)
    tool(*shared, "-o", folder / "by-bits", "--method", "waterfill", "--pareto", ",".join(f"{bits:.10g}" for bits in sorted(budgets.values())),
         "--model", model, "--text", sample / "prompts.jsonl", "--curve-context", context, "--curve-sequences", curve_sequences,
         "--dtype", "float32")
    for found in (folder / "by-bits").iterdir():
        bits = json.loads((found / "oscar_bundle.json").read_text())["provenance"]["options"]["bits"]
        found.rename(folder / next(name for name, asked in budgets.items() if abs(asked - bits) < 1e-6))
    bundles = [x for name in [*fits(rank + rotated), *budgets] for x in ("--bundle", folder / name)]
    tool("oscar-verify", "--no-gate", "--model", model, *bundles, "--text", sample / "heldout.txt", "--context", context, "--max-sequences",
         sequences, "--tokens", 0, "--path", path, "--methods", "bf16,naive2,hadamard2", "--report", folder / "report.json", *on)
    report = json.loads((folder / "report.json").read_text())
    return {(m["id"], m["path"]): m for m in report["methods"]}, report


def table(rows):
    lines = ["| method | bits | bytes a token and layer | mean KL, nats | same top token |", "|---|---:|---:|---:|---:|"]
    for (name, _), m in rows.items():
        lines.append(f"| `{name}` | {m['code_bits_per_element']:.2f} | {m['token_bytes']:.4g} | {m['kl']['mean']:.4f} ± "
                     f"{m['kl']['stderr']:.4f} | {100 * m['same_top1']:.1f}% |")
    return "\n".join(lines)


def program(name, *arguments):
    subprocess.run([SOURCE_DIR / "build" / "bin" / name, *map(str, arguments)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--rotated", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=30000, help="to calibrate on")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    print(table(run(program, given.directory, given.rank, given.rotated, given.device, context=given.context, sequences=given.sequences,
                    tokens=given.tokens, curve_sequences=max(2, given.sequences))[0]))
