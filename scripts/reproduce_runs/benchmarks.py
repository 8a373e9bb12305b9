"""The benchmarks of the papers as lm-evaluation-harness 0.4.13 has them, and what the papers report of them."""
import dataclasses

OSCAR, OTHER_OSCAR = "OSCAR", "OScaR"  # two papers: arXiv 2605.17757 and 2605.19660
LONGBENCH_E = ("qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "gov_report", "multi_news", "trec", "triviaqa", "samsum", "passage_count",
               "passage_retrieval_en", "lcc", "repobench-p")
RULER = (*(f"niah_single_{i}" for i in (1, 2, 3)), *(f"niah_multikey_{i}" for i in (1, 2, 3)), "niah_multiquery", "niah_multivalue",
         "ruler_vt", "ruler_cwe", "ruler_fwe", "ruler_qa_squad", "ruler_qa_hotpot")


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A score is the mean over `tasks` of a metric, in percent. metrics: ((what follows the name in tables, metric of the
    harness),); none: the first one that each task has."""
    name: str
    title: str
    paper: str
    tasks: tuple
    metrics: tuple = ()
    dataset: str = ""        # on the hub, or where else its questions come from
    reasoning: bool = False  # long answers, sampled, from a chat template without examples: as OSCAR has them


PAPERS = (
    Benchmark("aime25", "AIME25", OSCAR, ("aime25",), (("", "exact_match,none"),), "math-ai/aime25", True),
    Benchmark("gpqa-diamond", "GPQA diamond", OSCAR, ("gpqa_diamond_cot_zeroshot",), (("", "exact_match,flexible-extract"),), "Idavidrein/gpqa", True),
    Benchmark("math-500", "MATH-500", OSCAR, ("minerva_math500",), (("", "math_verify,none"),), "HuggingFaceH4/MATH-500", True),
    # The harness's group longbench_e lacks four of the thirteen tasks (summaries, and two synthetic ones).
    Benchmark("longbench-e", "LongBench-E", OTHER_OSCAR, tuple(f"longbench_{name}_e" for name in LONGBENCH_E), (("", "score,none"),), "Xnhyacinth/LongBench"),
    Benchmark("ruler", "RULER", OTHER_OSCAR, RULER, (), "made by its tasks"),
)
# What the papers have and the harness has not: named on every page.
LEFT_OUT = (("LiveCodeBench", OSCAR, "lm-evaluation-harness 0.4.13 has no such task"),
            ("HumanEval", OSCAR, "its task runs code that the model has written, which this command does not do"))

# Points that the papers report for the BF16 cache and for their own 2-bit cache. OSCAR: its repository's table of means over five
# seeds, answers of up to 32,768 tokens. OScaR: its paper's table of LongBench-E.
PUBLISHED = {
    "Qwen3-4B-Thinking-2507": {"aime25": (74.67, 64.00), "gpqa-diamond": (67.27, 64.95), "math-500": (93.55, 92.75)},
    "Qwen3-8B": {"aime25": (70.00, 66.67), "gpqa-diamond": (56.67, 55.05), "math-500": (92.59, 92.22), "longbench-e": (49.56, 48.74)},
    "Llama-3.1-8B-Instruct": {"longbench-e": (41.70, 41.75)},
}


def ruler(lengths):
    """RULER at contexts of these lengths, of which each is a metric of its own."""
    one = next(b for b in PAPERS if b.name == "ruler")
    return dataclasses.replace(one, metrics=tuple((f", {n:,} tokens", f"{n},none") for n in lengths))


def chosen(names, lengths):
    """[Benchmark] by names of PAPERS; another name is taken for a task of the harness."""
    known = {b.name: b for b in PAPERS} | {"ruler": ruler(lengths)}
    return [known.get(name) or Benchmark(name, name, "", (name,)) for name in names]


def published(model, benchmark):
    """(BF16, 2-bit) of the paper for the model of this name, or None. model: org/name or a folder."""
    return PUBLISHED.get(str(model).rstrip("/").rpartition("/")[2], {}).get(benchmark)
