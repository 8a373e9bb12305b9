"""report.html in a real browser: headless Chromium lays the page out at three widths, light and dark, and
runs no script in it. Skipped where no Chromium is installed (Debian package: chromium)."""
import base64
import hashlib
import html
import itertools
import json
import re
import shutil
import subprocess

import pytest

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian package: chromium)")

WIDTHS = (400, 1280, 2200)
SCHEMES = {"dark": "0", "light": "1"}  # of Chromium's preferredColorScheme

# Runs in the page and writes what it sees into the page around it, all of it before that page's load event: the DOM that
# Chromium prints has it, however busy the machine is.
PROBE = """
window.addEventListener("load", function () {
  var found = {width: innerWidth};
  function box(e) {
    var b = e.getBoundingClientRect();
    return {left: b.left, right: b.right, top: b.top, bottom: b.bottom, width: b.width};
  }
  function all(selector, value) { return Array.prototype.map.call(document.querySelectorAll(selector), value); }
  // Color as drawn: the first opaque ground from an element outwards.
  function ground(e) {
    for (; e; e = e.parentElement) {
      var c = getComputedStyle(e).backgroundColor;
      if (c !== "rgba(0, 0, 0, 0)" && c.indexOf("color(") !== 0) return c;
    }
    return getComputedStyle(document.documentElement).backgroundColor;
  }
  found.broken = all(".whole", function (n) { return n.getClientRects().length > 1 ? n.textContent : ""; }).filter(Boolean);
  found.names = document.querySelectorAll(".whole").length;
  document.querySelectorAll("details").forEach(function (d) { d.open = true; });
  var table = document.querySelector("table.wide"), scroll = table.closest(".scroll");
  function column(name) {
    var heads = Array.prototype.map.call(table.tHead.rows[0].cells, function (c) { return c.textContent.trim(); });
    return heads.findIndex(function (h) { return h.startsWith(name); });
  }
  var kl = column("KL mean");
  var row = table.tBodies[0].rows[1];
  found.table = box(table);
  found.frame = box(scroll);
  found.method = box(row.cells[0]);
  found.first_number = box(row.cells[kl]);
  found.second_number = box(row.cells[kl + 1]);
  found.windows = Array.prototype.map.call(document.querySelectorAll("table.wide")[1].tBodies[0].rows, function (r) { return r.cells[r.cells.length - 1].textContent; });
  found.ground = getComputedStyle(document.body).backgroundColor;
  found.ink = getComputedStyle(document.body).color;
  found.contrast = all("td, th, p, caption, dt, dd, li", function (e) {
    return {text: e.textContent.slice(0, 30), ink: getComputedStyle(e).color, ground: ground(e)};
  });
  found.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  found.hidden = all(".scroll", function (s) {
    return s.scrollWidth > s.clientWidth + 1 ? s.textContent.slice(0, 60) : "";
  }).filter(Boolean);
  found.requests = performance.getEntriesByType("resource").length;
  scroll.scrollLeft = 250;
  found.scrolled = scroll.scrollLeft;
  found.method_scrolled = box(row.cells[0]);
  var out = parent.document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(found);
  parent.document.body.appendChild(out);
});
"""

# A window narrower than 500 pixels is not to be had: the page is looked at in a frame of the width.
AROUND = """<!DOCTYPE html><meta charset="utf-8"><style>body, iframe {{ margin: 0; border: 0; display: block; }}</style>
<iframe src="{source}" width="{width}" height="4000"></iframe>
"""


def dom(path, profile, *options):
    """The page's DOM after scripts ran."""
    line = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=2300,1000", f"--user-data-dir={profile}",
            "--allow-file-access-from-files", *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def with_script(page, script):
    """The page with a script that its policy allows by hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert page.count("default-src 'none';") == 1 and "script-src" not in page
    return page.replace("default-src 'none';", f"default-src 'none'; script-src 'sha256-{digest}';").replace("</body>", f"<script>{script}</script></body>")


@pytest.fixture(scope="module")
def pages(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    tool("verify_tool", "report", folder)
    for name in ("report", "crowded", "bytes"):
        (folder / f"probed-{name}.html").write_text(with_script((folder / f"{name}.html").read_text(), PROBE))
    return folder


@pytest.fixture(scope="module")
def look(pages, tmp_path_factory):
    seen = {}

    def probe(name, width=1280, scheme="light"):
        key = (name, width, scheme)
        if key not in seen:
            around = pages / f"around-{name}-{width}.html"
            around.write_text(AROUND.format(source=(pages / f"probed-{name}.html").as_uri(), width=width))
            text = dom(around, tmp_path_factory.mktemp("profile"), f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}")
            answer = re.search(r'<pre id="probe">(.*?)</pre>', text, re.S)
            assert answer, text[-2000:]
            seen[key] = json.loads(html.unescape(answer.group(1)))
            assert seen[key]["width"] == width
        return seen[key]

    return probe


def rgb(color):
    return [float(x) for x in re.findall(r"[\d.]+", color)[:3]]


def luminance(color):
    """Relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in rgb(color))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("width,scheme", list(itertools.product(WIDTHS, SCHEMES)))
def test_every_width_light_and_dark(look, width, scheme):
    found = look("crowded", width, scheme)
    assert not found["wide"], "the page scrolls sideways"
    assert found["requests"] == 0
    # The figures that decide are in sight beside the name, whatever the width.
    for number in ("first_number", "second_number"):
        assert found["method"]["right"] <= found[number]["left"] + 1 and found[number]["right"] <= width, found[number]
    assert found["method"]["width"] < 0.45 * width
    assert found["names"] > 5 and found["broken"] == [], "short names stand on one line"
    if scheme == "light":
        assert luminance(found["ground"]) > 0.8 > luminance(found["ink"]) + 0.6
    else:
        assert luminance(found["ground"]) < 0.05 < luminance(found["ink"]) - 0.5
    poor = [c for c in found["contrast"] if c["ground"].startswith("rgb(") and contrast(c["ink"], c["ground"]) < 4.5]
    assert poor == []


def test_tables_use_the_window(look):
    wide = look("crowded", 2200)
    assert wide["frame"]["width"] > 0.9 * 2200 and wide["table"]["width"] > 0.9 * 2200
    assert wide["hidden"] == [], "everything is in sight"


@pytest.mark.parametrize("name", ["report", "crowded", "bytes"])
def test_nothing_is_hidden_at_1280(look, name):
    assert look(name, 1280)["hidden"] == []


def test_the_method_stays_in_sight(look):
    found = look("crowded", 400)
    assert found["table"]["width"] > found["frame"]["width"]
    assert found["scrolled"] == 250
    assert abs(found["method_scrolled"]["left"] - found["method"]["left"]) < 1, "the method column is fixed"


def test_windows_are_named_for_each_method(look):
    windows = look("bytes")["windows"]
    assert sum("windows" in w and "groups of" in w for w in windows) == len(windows) - 1  # all but BF16
    assert any("K " in w for w in windows)


def test_the_policy_runs_no_script(pages, tmp_path):
    page = (pages / "report.html").read_text()
    foreign = page.replace("</body>", "<script>document.title = 'foreign'</script><img src=x onerror=\"document.title = 'foreign'\"></body>")
    (tmp_path / "foreign.html").write_text(foreign)
    text = dom(tmp_path / "foreign.html", tmp_path / "profile")
    assert "<title>foreign" not in text and "<script" not in page
    for word in ("KL mean", "KL by position", "Provenance", "naive2"):
        assert word in text, word
