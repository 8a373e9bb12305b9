"""Options of scripts/quality, and which run they ask for."""
import argparse
import pathlib
import shutil

from . import growth, kl, own_text, shift, shift_parts
from .model import MODELS, Model
from .programs import BUILD, COLLECT, FIT, SCORE, VERIFY, require
from .rows import GROUPS, GROUPS_HELP, rows_of
from .work import work


def parse(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=BUILD / "quality", metavar="FOLDER")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--rows", nargs="+", choices=GROUPS, default=["default"], help=GROUPS_HELP)
    parser.add_argument("--sequences", type=int, default=12, help="of 2,048 tokens; other contexts score as many tokens; "
                        "--shift without --texts: 6")
    parser.add_argument("--curve-sequences", type=int, help="of measured curves")
    parser.add_argument("--codebook-rows", type=int, help="sampled tokens that codebooks are learned from (default: all, up to 32,768)")
    parser.add_argument("--needles", type=int, default=30, help="0: none")
    parser.add_argument("--shift", action="store_true", help="kinds of text instead of methods")
    parser.add_argument("--shift-parts", action="store_true", help="one part of the bundle (closed form) from the other kind of text")
    parser.add_argument("--own-text", action="store_true", help="text that the model writes itself instead of prompts")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="of --own-text")
    parser.add_argument("--growth", action="store_true", help="KL over the last quarter of positions over that of the second")
    parser.add_argument("--context", nargs="+", type=int, help="of --growth (default: 2048 4096 8192; with --calibration: 8192)")
    parser.add_argument("--calibration", nargs="+", type=int, metavar="TOKENS", help="of --growth: calibrate on the prompts as one text in "
                        "sequences of these lengths, in place of each prompt alone; what is fitted stays in FOLDER/calibration-TOKENS")
    parser.add_argument("--texts", type=pathlib.Path, metavar="DIR", help="held-out texts of make_model_texts.py --heldout")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--bits", default="2.25", help="of --shift and --own-text")
    parser.add_argument("--allocate", default="measured", choices=["measured", "closed"], help="of --shift and --own-text")
    parser.add_argument("--table", action="store_true", help="only print")
    parser.add_argument("--fresh", nargs="+", choices=MODELS, default=[], help="forget what was measured of these")
    options = parser.parse_args()
    if options.calibration and not options.growth:
        parser.error("--calibration is of --growth")
    return options


def forget(folder, names):
    for name in names:
        for path in folder.rglob(f"{name}.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def models_in(options, folder, calibration=None):
    folder.mkdir(parents=True, exist_ok=True)
    forget(folder, options.fresh)
    return [Model(name, folder, device=options.device, curve_sequences=options.curve_sequences, calibration=calibration,
                  rows=options.codebook_rows, texts=options.texts) for name in options.models]


def growth_by_calibration(options):
    """One table for each context, with a column for each model and length of calibration."""
    rows, contexts = rows_of(options.rows), options.context or [8192]
    found = {length: models_in(options, options.folder / f"calibration-{length}", length) for length in options.calibration}
    if not options.table:
        for models in found.values():
            work(models, lambda model: growth.measure(model, rows, contexts, options.sequences * 2048))
    named = {length: {model.name: model for model in models} for length, models in found.items()}
    lines = []
    for context in contexts:
        lines += ["", f"Scored at context {context:,}.", ""]
        lines += growth.table(growth.calibration_columns(options.models, named, options.calibration, context), rows)
    return lines[1:]


def growth_by_context(options, models):
    rows, contexts = rows_of(options.rows), options.context or [2048, 4096, 8192]
    if not options.table:
        work(models, lambda model: growth.measure(model, rows, contexts, options.sequences * 2048))
    return growth.table(growth.columns_of(models, contexts), rows)


def lines_of(options):
    if options.calibration:
        return growth_by_calibration(options)
    models = models_in(options, options.folder)
    if options.growth:
        return growth_by_context(options, models)
    rows = rows_of(options.rows)
    of_kinds = (options.bits, options.sequences if options.texts else 6)
    shifted = (options.bits, options.allocate, of_kinds[1])
    kinds = [(options.shift, shift, shifted), (options.shift_parts, shift_parts, of_kinds),
             (options.own_text, own_text, (options.bits, options.allocate, options.seeds, options.sequences)),
             (True, kl, (rows, options.sequences, options.needles))]
    _, kind, arguments = next(k for k in kinds if k[0])
    if not options.table:
        work(models, lambda model: kind.measure(model, *arguments))
    return kind.table(models, *arguments)


def main(description):
    options = parse(description)
    if not options.table:
        require([COLLECT, FIT, VERIFY if options.growth else SCORE])
    print("\n".join(lines_of(options)))
