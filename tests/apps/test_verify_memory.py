"""Peak memory of oscar-verify does not depend on the length of the text."""
import os
import subprocess

from harness import command

CONTEXT, SEQUENCES = 256, 24


def peak_bytes(model, text, sequences):
    """Peak resident memory of the process, from the kernel's own account of it."""
    line = command("verify", "--no-gate", "--model", model, "--text", text, "--context", CONTEXT, "--windows", "16,32", "--tokens", 0,
                   "--max-sequences", sequences, "--methods", "bf16,naive2,kivi2,hadamard2", "--compare", "authors,common,bytes",
                   "--bootstrap", 0, "--device", "cpu", "-q")
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "2"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_four_times_the_text_takes_the_same_memory(model, tmp_path):
    text = tmp_path / "text.txt"  # the same file for both: what is not scored is read, too
    text.write_text("".join(f"Valve {i} is {'open' if i % 3 else 'closed'} and its pressure is {i * 7 % 50}.\n" for i in range(3000)))
    short, long = (peak_bytes(model, text, n) for n in (SEQUENCES, 4 * SEQUENCES))
    tokens = 3 * SEQUENCES * CONTEXT
    # The heap's own noise is some 15 MB here and may be more elsewhere; logits of one method alone, were they kept, would be 600.
    assert long - short < 100 << 20, f"{(long - short) / tokens:.0f} bytes for each token more ({short} and {long})"
