"""The steps of a run, from its options: statistics, bundles, the judge, and one run of the harness for each benchmark, cache and seed."""
import dataclasses
import json
import os
import pathlib
import sys

from quality_runs.programs import BUILD, COLLECT, FIT, ROOT, VERIFY

from .steps import Step

CACHES = {"bf16": "BF16", "oscar": "OSCAR", "waterfill": "waterfill"}
PUBLISHED_CLIP = "0.96,0.92"


def bundle_of(options, cache):
    """Its folder; oscar-verify names rows by folders, and the names of methods are taken."""
    return options.output / f"bundle-{cache}"


@dataclasses.dataclass
class Run:
    """One run of the harness."""
    benchmark: object
    cache: str
    seed: int
    step: Step
    results: pathlib.Path  # folder in which results_*.json lies


def fitting(options):
    """Statistics and both bundles. The published method has its published clip ratios and the encoder that its engine has."""
    folder, work = options.output, options.output / "work"
    statistics, ours, oscar = folder / "statistics.safetensors", bundle_of(options, "waterfill"), bundle_of(options, "oscar")
    windows = ["--windows", options.windows]
    prompts = [str(p) for p in options.prompts]
    device = ["--device", options.device, "--dtype", options.dtype]
    tokens = ["--tokens", str(options.tokens)]
    model = ["--model", options.model, "--work-dir", str(work / "fit"), "--resume", *device]
    steps = []
    if prompts:
        steps.append(Step("collect", [str(COLLECT), "--model", options.model, "--prompts", *prompts, "-o", str(statistics), "--far-pairs",
                                      options.windows, *tokens, *device, "--work-dir", str(work / "collect"), "--resume"],
                          [statistics], options.prompts, [work / "collect"]))
        closed = options.allocate == "closed"  # it looks at the statistics alone
        source, more = [str(statistics)], ["--device", options.device] if closed else [*model, "--text", *prompts[:1]]
        made, read = [ours], [statistics]
    else:  # the model writes its calibration text: oscar-fit collects on the way
        statistics = folder / f"{ours.name}.statistics.safetensors"
        source, more, made, read = [], [*model, *tokens], [ours, statistics], []
    allocate = ["--allocate", options.allocate] if options.allocate else []
    steps.append(Step("fit-waterfill", [str(FIT), *source, "-o", str(ours), "--method", "waterfill", "--bits", options.bits, *windows,
                                        *more, *allocate], made, read, [work / "fit"]))
    steps.append(Step("fit-oscar", [str(FIT), str(statistics), "-o", str(oscar), "--method", "oscar", "--clip", PUBLISHED_CLIP, "--encoder",
                                    "minmax", *windows, "--device", options.device], [oscar], [statistics]))
    return steps


def verifying(options):
    """Exit code 1 is a self check that failed: the report says which."""
    report, page = options.output / "verify.json", options.output / "verify.html"
    bundles = [bundle_of(options, cache) for cache in CACHES if cache != "bf16"]
    command = [str(VERIFY), "--model", options.model, *(x for b in bundles for x in ("--bundle", str(b))), "--text", str(options.text),
               "--context", str(options.context), "--tokens", str(options.text_tokens), "--report", str(report), "--html", str(page), "--work-dir",
               str(options.output / "work" / "verify"), "--resume", "--device", options.device, "--dtype", options.dtype]
    return Step("verify", command, [report, page], [*bundles, options.text], [options.output / "work" / "verify"], allowed=(0, 1))


def environment():
    """Of the harness: the package of this checkout, and the CUDA operators that were built with it."""
    path = [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    made, operators = {"PYTHONPATH": os.pathsep.join(path), "TOKENIZERS_PARALLELISM": "false"}, BUILD / "oscar_kv" / "liboscar_kv_cuda.so"
    if "OSCAR_KV_OPERATORS" not in os.environ and operators.is_file():
        made["OSCAR_KV_OPERATORS"] = str(operators)
    return made


def harness(options, benchmark, cache, seed):
    """The run of one benchmark with one cache."""
    name = f"runs/{cache}/{benchmark.name}/seed-{seed}"
    folder, responses = options.output / name, options.output / "work" / "responses" / cache / benchmark.name / f"seed-{seed}"
    arguments = {"pretrained": options.model, "dtype": options.dtype}
    inputs = []
    if cache != "bf16":
        arguments["bundle"] = str(bundle_of(options, cache))
        inputs = [bundle_of(options, cache)]
    if options.think_end:
        arguments["think_end_token"] = options.think_end
    command = [sys.executable, "-m", "lm_eval" if cache == "bf16" else "oscar_kv.lm_eval", "run", "--model", "hf" if cache == "bf16" else "oscar-kv",
               "--model_args", json.dumps(arguments), "--tasks", ",".join(benchmark.tasks), "--device", options.device, "--batch_size",
               str(options.batch_size), "--seed", str(seed), "--output_path", str(folder), "--log_samples"]
    if benchmark.name == "ruler":
        command += ["--metadata", json.dumps({"max_seq_lengths": options.ruler_lengths})]
    sampled = benchmark.reasoning and not options.greedy
    if benchmark.reasoning:
        kept = {"max_gen_toks": options.max_gen_toks}
        kept |= {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20} if sampled else {"do_sample": False}
        command += ["--gen_kwargs", json.dumps(kept)]
        if options.chat:
            command += ["--apply_chat_template", "--num_fewshot", "0"]
    if not sampled:  # the harness keeps answers one by one, but not those that were drawn
        command += ["--use_cache", str(responses / "answers")]
    if options.limit:
        command += ["--limit", str(options.limit)]
    if options.include_path:
        command += ["--include_path", str(options.include_path)]
        inputs += sorted(options.include_path.glob("*.yaml"))
    return Run(benchmark, cache, seed, Step(name, command, [folder], inputs, [responses], environment()), folder)


def runs(options, benchmarks):
    """Caches beside each other, so that a run that is stopped early has whole rows. Greedy answers need one seed."""
    return [harness(options, b, cache, seed) for seed in range(options.seeds) for b in benchmarks for cache in CACHES
            if seed == 0 or (b.reasoning and not options.greedy)]
