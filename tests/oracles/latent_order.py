"""The order of cache methods on the made checkpoint of latent_checkpoint.py: collects, fits, verifies, prints a table.

    python tests/oracles/latent_order.py DIR [--rank 512 --rotated 64] [--device cuda]"""
import argparse
import json
import pathlib
import subprocess

import latent_checkpoint

SOURCE_DIR = pathlib.Path(__file__).parents[2]
BITS = {"4": 4, "225": 2.25, "15": 1.5}
FITS = {"oscar": ["--method", "oscar"], "balanced": ["--method", "balanced"],
        **{f"waterfill-{name}": ["--method", "waterfill", "--bits", bits] for name, bits in BITS.items()}}


def run(tool, folder, rank=128, rotated=32, device="cpu", windows=(64, 256), context=2048, sequences=8, tokens=30000, path="prefill",
        curve_sequences=8):
    """Rows of the report by (id, path), and the report. tool(program, *arguments) runs a program."""
    sample = SOURCE_DIR / "sample_data"
    model = latent_checkpoint.make(folder / "model", sample / "tiny-qwen3", rank, rotated)
    on = ["--device", device, "--dtype", "float32", "-q"]
    tool("oscar-collect", "--model", model, "--prompts", sample / "prompts.jsonl", "-o", folder / "s.safetensors", "--tokens", tokens,
         "--seq-len", context, "--far-pairs", ",".join(map(str, windows)), *on)
    shared = ["oscar-fit", folder / "s.safetensors", "--windows", ",".join(map(str, windows)), "--device", device, "-q"]
    for name, options in FITS.items():
        tool(*shared, "-o", folder / name, *options)
    # Curves are of the calibration prompts, measured once for all budgets.
    tool(*shared, "-o", folder / "by-bits", "--method", "waterfill", "--pareto", ",".join(map(str, sorted(BITS.values()))),
         "--model", model, "--text", sample / "prompts.jsonl", "--curve-context", context, "--curve-sequences", curve_sequences,
         "--dtype", "float32")
    for found in (folder / "by-bits").iterdir():
        bits = json.loads((found / "oscar_bundle.json").read_text())["provenance"]["options"]["bits"]
        found.rename(folder / f"measured-{next(name for name, asked in BITS.items() if asked == bits)}")
    bundles = [x for name in [*FITS, *(f"measured-{name}" for name in BITS)] for x in ("--bundle", folder / name)]
    tool("oscar-verify", "--no-gate", "--model", model, *bundles, "--text", sample / "heldout.txt", "--context", context, "--max-sequences",
         sequences, "--tokens", 0, "--path", path, "--methods", "bf16,naive2,hadamard2,fp8", "--report", folder / "report.json", *on)
    report = json.loads((folder / "report.json").read_text())
    return {(m["id"], m["path"]): m for m in report["methods"]}, report


def table(rows):
    lines = ["| method | bits | bytes a token and layer | mean KL, nats | same top token |", "|---|---:|---:|---:|---:|"]
    for (name, _), m in rows.items():
        lines.append(f"| `{name}` | {m['code_bits_per_element']:.2f} | {m['token_bytes']:.4g} | {m['kl']['mean']:.5f} ± "
                     f"{m['kl']['stderr']:.5f} | {100 * m['same_top1']:.1f}% |")
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
