"""reproduce.html: one page that needs nothing but itself. All text of others is escaped."""
import html

from .benchmarks import published
from .plan import CACHES

STYLE = """body { font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 } th, td { border-bottom: 1px solid #ddd; padding: .3em .7em; text-align: right }
th:first-child, td:first-child { text-align: left } caption { text-align: left; color: #555 } .bad { color: #a00 } code { font-size: 90% }
td.text { text-align: left }"""


def e(text):
    return html.escape(str(text), quote=True)


def table(head, rows, caption=""):
    lines = [f"<table><caption>{e(caption)}</caption>", "<tr>" + "".join(f"<th>{e(h)}</th>" for h in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{e(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def points(cell):
    """A score with its spread over seeds."""
    if cell is None:
        return "none"
    spread = "" if cell["stdev"] is None else f" ± {cell['stdev']:.1f}"
    return f"{cell['score']:.2f}{spread}"


def benchmark_rows(document):
    for row in document["benchmarks"]:
        cells = row["caches"]
        base = cells.get("bf16")
        line = [row["title"], row["paper"]]
        for cache in CACHES:
            cell, text = cells.get(cache), points(cells.get(cache))
            if cache != "bf16" and cell and base:
                text += f" ({cell['score'] - base['score']:+.2f})"
            line.append(text)
        told = published(document["model"], row["name"])
        line.append("" if told is None else f"{told[0]:.2f} / {told[1]:.2f}")
        seeds = max((c["seeds"] for c in cells.values()), default=0)
        yield [*line, max((c["documents"] for c in cells.values()), default=0), seeds]


def render(document):
    """document: what reproduce.json holds."""
    parts = [f"<h1>{e(document['model'])} with a 2-bit KV cache</h1>",
             "<p>Scores of lm-evaluation-harness in percent, the BF16 cache beside the published OSCAR and <code>waterfill</code>. In brackets: "
             "points against BF16; ±: standard deviation over seeds.</p>"]
    if document["failures"]:
        parts += ["<h2 class=bad>What failed</h2><ul>", *(f"<li class=bad>{e(f)}</li>" for f in document["failures"]), "</ul>"]
    if document["options"]["limit"]:
        parts.append(f"<p class=bad>At most {e(document['options']['limit'])} documents of each task were asked (--limit): these are no "
                     "results of the benchmarks.</p>")
    head = ["benchmark", "paper", *CACHES.values(), "the paper: BF16 / 2 bits", "documents", "seeds"]
    parts += ["<h2>Benchmarks</h2>", table(head, benchmark_rows(document))]
    if document["verify"]:
        rows = [[r["id"], r["path"], f"{r['bits']:.3f}", f"{r['kl']:.3g}", f"{100 * r['same_top1']:.2f}%"] for r in document["verify"]]
        parts += ["<h2>oscar-verify</h2>", table(["method", "path", "bits", "KL to BF16, nats", "same top token"], rows,
                                                 f"context {document['options']['context']}, windows {document['options']['windows']}")]
    parts += ["<h2>Left out</h2>", "<ul>", *(f"<li>{e(r['name'])} ({e(r['paper'])}): {e(r['reason'])}.</li>" for r in document["left_out"]), "</ul>"]
    parts += ["<h2>How</h2>", "<p>Papers run their own harnesses with prompts of their own, so a difference to their columns is no fault by "
              "itself; the columns of this page are of one harness.</p>",
              table(["step", "seconds", "command"], ([s["name"], s["seconds"], s["command"]] for s in document["steps"])),
              table(["version", ""], document["versions"].items()), table(["option", ""], document["options"].items())]
    title = f"{e(document['model'])}: 2-bit KV cache"
    return f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{title}</title>\n<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
