"""report.html in a real browser: headless Chromium lays the page out, sorts a table, and shows it light, dark and without
scripts. Skipped where no Chromium is installed (Debian package: chromium)."""
import json
import re
import shutil
import subprocess

import pytest

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian package: chromium)")

PROBE = """
<script>
window.addEventListener("load", function () {
  var found = {};
  var boxes = Array.prototype.map.call(document.querySelectorAll("svg text.label"), function (t) {
    var b = t.getBoundingClientRect();
    return {text: t.textContent, left: b.left, right: b.right, top: b.top, bottom: b.bottom};
  });
  found.labels = boxes.length;
  found.overlaps = [];
  boxes.forEach(function (a, i) {
    boxes.slice(i + 1).forEach(function (b) {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top + 2 < b.bottom && b.top + 2 < a.bottom) {
        found.overlaps.push(a.text + " / " + b.text);
      }
    });
  });
  var table = document.querySelector("table.sortable");
  function column(name) {
    var heads = Array.prototype.map.call(table.tHead.rows[0].cells, function (c) { return c.textContent.trim(); });
    return heads.indexOf(name);
  }
  var kl = column("KL mean");
  function values() {
    return Array.prototype.map.call(table.tBodies[0].rows, function (r) { return parseFloat(r.cells[kl].textContent); });
  }
  var button = table.tHead.rows[0].cells[kl].querySelector("button");
  button.click();
  found.ascending = values();
  button.click();
  found.descending = values();
  found.sort = table.tHead.rows[0].cells[kl].getAttribute("aria-sort");
  found.ground = getComputedStyle(document.body).backgroundColor;
  found.ink = getComputedStyle(document.body).color;
  found.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  found.requests = performance.getEntriesByType("resource").length;
  var out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(found);
  document.body.appendChild(out);
});
</script>
"""


def dom(path, profile, *options):
    """The page's DOM after scripts ran."""
    line = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", f"--user-data-dir={profile}",
            *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def page(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    tool("verify_tool", "report", folder)
    html = (folder / "crowded.html").read_text()
    probed = folder / "probed.html"
    probed.write_text(html.replace("</body>", PROBE + "</body>"))
    return probed


@pytest.fixture(scope="module")
def probe(page, tmp_path_factory):
    def look(*options):
        text = dom(page, tmp_path_factory.mktemp("profile"), *options)
        import html

        return json.loads(html.unescape(re.search(r'<pre id="probe">(.*?)</pre>', text, re.S).group(1)))

    return look


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_layout_and_sorting(probe):
    found = probe()
    assert found["labels"] >= 10
    assert found["overlaps"] == [], "labels of the plot cover each other"
    assert found["ascending"] == sorted(found["ascending"]) and len(set(found["ascending"])) > 3
    assert found["descending"] == found["ascending"][::-1] or found["descending"] == sorted(found["descending"], reverse=True)
    assert found["sort"] == "descending"
    assert not found["wide"], "the page scrolls sideways"
    assert found["requests"] == 0


def test_light_and_dark(probe):
    dark, light = probe("--blink-settings=preferredColorScheme=0"), probe("--blink-settings=preferredColorScheme=1")
    assert brightness(light["ground"]) > 200 > brightness(light["ink"]) + 100
    assert brightness(dark["ground"]) < 60 < brightness(dark["ink"]) - 100


def test_without_scripts(page, tmp_path):
    # A policy of the page, because Chromium with scripts switched off altogether prints no DOM.
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"script-src 'none'\">"
    silent = tmp_path / "silent.html"
    silent.write_text(page.read_text().replace("<head>", "<head>" + policy))
    text = dom(silent, tmp_path / "profile")
    assert 'id="probe"' not in text.split("<script>")[0] and "<button" not in text.split("<script>")[0]
    for word in ("KL mean", "Bits against KL", "Provenance", "Spectra before and after", "naive2"):
        assert word in text, word
