"""Plots of the study as SVG: points and lines over logarithmic or linear axes, a legend beside them."""
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 64, 190, 34, 44
COLORS = ["#1f5fa8", "#c0392b", "#d68910", "#7d3c98", "#1e8449", "#5d6d7e", "#8e5b3f", "#2c3e50"]


def ticks(low, high, log):
    if log:
        return [10.0 ** n for n in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    step = 10.0 ** math.floor(math.log10((high - low) or 1))
    step = next(step * part for part in (.2, .5, 1, 2, 5) if (high - low) / (step * part) <= 6)
    return [step * n for n in range(math.floor(low / step), math.ceil(high / step) + 1)]


class Axis:
    def __init__(self, values, begin, end, log):
        self.ticks = ticks(min(values), max(values), log)
        self.of = math.log10 if log else float
        self.low, self.high, self.begin, self.end = self.of(self.ticks[0]), self.of(self.ticks[-1]), begin, end

    def __call__(self, value):
        return self.begin + (self.end - self.begin) * (self.of(value) - self.low) / ((self.high - self.low) or 1)


def plot(title, x_label, y_label, series, log_x=False, log_y=False):
    """series: {name: [(x, y)]}; a series of one point is a point."""
    points = [point for line in series.values() for point in line]
    x = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT, log_x)
    y = Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, log_y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', f'<text x="{LEFT}" y="20" font-size="14">{title}</text>']
    for at in y.ticks:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(at):.1f}" y2="{y(at):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{at:g}</text>')
    for at in x.ticks:
        out.append(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{at:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>')
    out.append(f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">{y_label}</text>')
    for i, (name, line) in enumerate(series.items()):
        color, at = COLORS[i % len(COLORS)], TOP + 16 * i
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        if len(line) > 1:
            out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5" fill="{color}"/>' for a, b in line]
        out.append(f'<circle cx="{WIDTH - RIGHT + 16}" cy="{at}" r="4" fill="{color}"/><text x="{WIDTH - RIGHT + 26}" y="{at + 4}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
