"""Options of scripts/reproduce, and what is checked before hours of work begin."""
import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

from quality_runs.programs import BUILD, COLLECT, DATA, FIT, VERIFY, note

from .benchmarks import PAPERS
from .errors import ENVIRONMENT_EXIT, Stop

HARNESS = "0.4.13"
INSTALL = "pip install -r scripts/requirements-reproduce.txt"
LIST_TASKS = "import json, sys; from lm_eval.tasks import TaskManager; print('\\n' + json.dumps(TaskManager(include_path=json.loads(sys.argv[1])).all_tasks))"


def parse(description, arguments):
    parser = argparse.ArgumentParser(prog="scripts/reproduce", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ",".join(b.name for b in PAPERS)
    parser.add_argument("model", metavar="MODEL", help="directory, or org/name in the Hugging Face cache")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=BUILD / "reproduce", metavar="DIR", help="where everything goes (default build/reproduce)")
    parser.add_argument("--prompts", nargs="+", type=pathlib.Path, default=[], metavar="FILE", help="calibration prompts (default: the model writes its own text)")
    parser.add_argument("--text", type=pathlib.Path, default=DATA / "heldout.txt", metavar="FILE", help="text that oscar-verify scores (default sample_data/heldout.txt)")
    parser.add_argument("--tasks", default=names, metavar="NAME,...", help=f"of {names} (all of them by default), or tasks of the harness")
    parser.add_argument("--include-path", type=pathlib.Path, metavar="DIR", help="tasks of your own in the harness's format")
    parser.add_argument("--limit", type=int, metavar="N", help="documents of each task; for trials, not for results")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of the sampled benchmarks (default 1; OSCAR has 5)")
    parser.add_argument("--greedy", action="store_true", help="do not sample: one seed, and a stopped run goes on at the document where it was")
    parser.add_argument("--max-gen-toks", type=int, default=32768, metavar="N", help="longest answer of OSCAR's benchmarks (default 32768)")
    parser.add_argument("--no-chat", dest="chat", action="store_false", help="OSCAR's benchmarks without the model's chat template")
    parser.add_argument("--think-end", metavar="TEXT", help="what ends the model's reasoning, such as '</think>': answers are read after it")
    parser.add_argument("--ruler-lengths", default="4096,8192,16384,32768", metavar="N,...", help="contexts of RULER (default 4096,8192,16384,32768)")
    parser.add_argument("--bits", default="2.25", help="of waterfill (default 2.25, which is OSCAR's)")
    parser.add_argument("--windows", default="64,256", metavar="SINK,RECENT", help="BF16 tokens (default 64,256)")
    parser.add_argument("--tokens", type=int, default=30000, metavar="N", help="of calibration (default 30000)")
    parser.add_argument("--allocate", metavar="NAME", help="of waterfill, as oscar-fit has it")
    parser.add_argument("--context", type=int, default=2048, metavar="N", help="of oscar-verify (default 2048)")
    parser.add_argument("--text-tokens", type=int, default=32768, metavar="N", help="of the text that oscar-verify scores (default 32768)")
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="of the harness (default 1)")
    parser.add_argument("--device", default=None, help="cpu, cuda or cuda:i (default: cuda where there is one)")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32 (default bfloat16)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and end")
    options = parser.parse_args(arguments)
    for name in ("limit", "seeds", "max_gen_toks", "tokens", "context", "text_tokens", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}, expected at least 1")
    if options.dtype not in ("bfloat16", "float32"):
        parser.error(f"--dtype is {options.dtype}, expected bfloat16 or float32")
    try:
        options.ruler_lengths = [int(n) for n in options.ruler_lengths.split(",")]
    except ValueError:
        parser.error(f"--ruler-lengths is {options.ruler_lengths}, expected whole numbers with commas between them")
    options.names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    if not options.names:
        parser.error("--tasks names no task")
    return options


def check_inputs(options):
    for path in (*options.prompts, options.text):
        if not path.is_file():
            raise Stop(f"{path}: does not exist, expected a text or prompts file")
    if options.include_path is not None and not any(options.include_path.glob("*.yaml")):
        raise Stop(f"{options.include_path}: holds no .yaml file of a task")
    here = pathlib.Path(options.model)
    if here.is_dir():
        options.model = str(here.resolve())
        if not (here / "config.json").is_file():
            raise Stop(f"{here}: holds no config.json, expected a checkpoint in Hugging Face layout")
    elif options.model.startswith((".", "/")) or options.model.count("/") != 1:
        raise Stop(f"{options.model}: is no folder and no org/name of a model in the Hugging Face cache")
    options.output, options.text = options.output.resolve(), options.text.resolve()
    options.prompts = [p.resolve() for p in options.prompts]
    options.include_path = options.include_path and options.include_path.resolve()


def check_programs():
    for program in (COLLECT, FIT, VERIFY):
        if not os.access(program, os.X_OK):
            raise Stop(f"{program} is missing; run scripts/build, or name another build folder in OSCAR_BUILD_DIR", ENVIRONMENT_EXIT)


def harness_version():
    try:
        return importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_tasks(options, benchmarks):
    """Before hours of work: does the harness have every task? [(name, paper, reason)] of the papers' benchmarks that it has not; Stop
    for a task that the user named."""
    found = harness_version()
    if found is None:
        raise Stop(f"lm-evaluation-harness is not installed in {sys.executable}; {INSTALL}", ENVIRONMENT_EXIT)
    if found != HARNESS:
        note(f"warning: lm_eval {found} is installed; names of tasks and metrics are those of {HARNESS}")
    include = None if options.include_path is None else str(options.include_path)
    done = subprocess.run([sys.executable, "-c", LIST_TASKS, json.dumps(include)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise Stop(f"lm-evaluation-harness cannot list its tasks ({lines[-1] if lines else 'no reason given'}); {INSTALL}", ENVIRONMENT_EXIT)
    known, absent = set(json.loads(done.stdout.splitlines()[-1])), []
    for benchmark in benchmarks:
        missing = [task for task in benchmark.tasks if task not in known]
        if missing and not benchmark.paper:
            raise Stop(f"--tasks: lm-evaluation-harness {found} has no task '{missing[0]}'; pass --include-path DIR for a task of your own")
        if missing:
            absent.append((benchmark.title, benchmark.paper, f"lm-evaluation-harness {found} has no task '{missing[0]}'"))
    return absent


def default_device():
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True, text=True, check=False)
    return "cuda" if done.stdout.strip() == "True" else "cpu"
