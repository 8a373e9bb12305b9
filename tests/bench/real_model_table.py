"""The table of Gemma 3 270M in docs/results.md, from the reports of oscar-verify by length (JSON)."""


def label(name):
    """The method of a row; budgets are named by their folders."""
    if name.startswith("bits-"):
        return f"`waterfill`, {name[5:]} bit{'' if name == 'bits-1' else 's'}"
    named = {"oscar-fit": "oscar", "balanced-fit": "balanced", "analytic": "waterfill, 2.25 bits, analytic"}
    method, *note = named.get(name, name).split(",", 1)
    return f"`{method}`" + "".join("," + text for text in note)


def half_width(kl):
    """The farther end of the 95% interval over sequences."""
    return max(kl["ci"][1] - kl["mean"], kl["mean"] - kl["ci"][0])


def each(cells):
    return " / ".join(cells)


def recalled(m):
    """Percent of the repeated phrases predicted by the BF16 cache that the method still predicts; None if there are none."""
    return 100 * m["recall"]["share"] / m["recall"]["bf16"] if m.get("recall") and m["recall"]["bf16"] else None


def row(name, reports, phrases):
    """None for a method that a report lacks, and for the BF16 cache, which all others are compared with."""
    found = [next((m for m in report["methods"] if m["id"] == name), None) for report in reports.values()]
    if any(m is None or "kl" not in m or name == "bf16" for m in found):
        return None
    cells = [label(name), f"{found[0]['code_bits_per_element']:.2f}", each(f"{m['bits_per_element']:.2f}" for m in found),
             *(f"{m['kl']['mean']:.3g} ± {half_width(m['kl']):.2g}" for m in found), each(f"{m['ppl_ratio']:.3f}" for m in found),
             each(f"{100 * m['same_top1']:.1f}%" for m in found)]
    if phrases:
        cells.append(each("none" if recalled(m) is None else f"{recalled(m):.1f}%" for m in found))
    return "| " + " | ".join(cells) + " |"


def table(reports):
    """Bits, perplexity, top tokens and repeated phrases have one column, with a number for each length."""
    names = list(dict.fromkeys(m["id"] for report in reports.values() for m in report["methods"]))
    phrases = any(recalled(m) is not None for report in reports.values() for m in report["methods"])
    head = ["method", "code bits", "bits with windows", *(f"KL at {int(length):,}" for length in reports), "PPL ratio", "same top token",
            *(["repeated phrases"] if phrases else [])]
    rows = filter(None, (row(name, reports, phrases) for name in names))
    return "\n".join(["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1), *rows]) + "\n"
