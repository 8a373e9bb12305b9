"""Numbers and headings as tables have them."""
import math


def number(value):
    return f"{value:.4f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"


def with_error(score):
    return f"{number(score['kl'])} ± {number(score['error'])}" if score else ""


def geometric_mean(ratios):
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else ""


def headings(models):
    return [name.removeprefix("tiny-").replace("-outliers", ", outliers") for name in models]
