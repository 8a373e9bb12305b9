#include "verify/html/parts.h"

namespace oscar::html {

// Series colours are told apart without colour vision, too: plots add markers and dashes, tables add words. The dark
// values are lighter versions of the same hues; text keeps a contrast of at least 4.5 to its ground in both.
std::string style_sheet() {
  return R"css(
:root { color-scheme: light dark;
  --ground: #ffffff; --panel: #f5f6f8; --ink: #1b1f24; --faint: #59636e; --line: #d0d5db;
  --good: #116329; --good-ground: #dafbe1; --bad: #a40e26; --bad-ground: #ffebe9; --note-ground: #eef1f4;
  --s0: #57606a; --s1: #b42318; --s2: #9a5b00; --s3: #0b57c2; --s4: #6d28c9; --s5: #0f766e; --s6: #ad1a72; --s7: #4d6b0e; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #0f1318; --panel: #181e25; --ink: #e4e8ec; --faint: #9aa5b1; --line: #333c46;
  --good: #6fdd8b; --good-ground: #12301c; --bad: #ff9d93; --bad-ground: #3a1516; --note-ground: #1d242c;
  --s0: #aab3bd; --s1: #ff8a80; --s2: #e9b04a; --s3: #7db4ff; --s4: #c4a1ff; --s5: #5fd3c6; --s6: #ff8ec7; --s7: #b5d35c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 60rem; } .faint { color: var(--faint); font-size: .9rem; }
code, pre { font: .85rem/1.45 ui-monospace, "SF Mono", "Liberation Mono", monospace; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .7rem; white-space: pre-wrap; }
.banner { border: 1px solid; border-radius: 8px; padding: .8rem 1rem; margin: 1rem 0; }
.banner strong { font-size: 1.15rem; } .banner ul { margin: .3rem 0 0; padding-left: 1.2rem; }
.banner.pass { color: var(--good); background: var(--good-ground); border-color: var(--good); }
.banner.fail { color: var(--bad); background: var(--bad-ground); border-color: var(--bad); }
.banner.note { background: var(--note-ground); border-color: var(--line); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
caption { text-align: left; color: var(--faint); padding-bottom: .4rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; } thead th { border-bottom: 2px solid var(--line); }
th:first-child, td.text, th.text { text-align: left; } td.wrap { white-space: normal; min-width: 18rem; }
tr.judged { background: var(--panel); } td.pass { color: var(--good); } td.fail { color: var(--bad); font-weight: 700; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--ink); }
th[aria-sort="ascending"] button::after { content: " \2191"; } th[aria-sort="descending"] button::after { content: " \2193"; }
td.cell { text-align: center; border: 1px solid var(--line); }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; background: currentColor; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .3rem 0; padding: 0; list-style: none; font-size: .9rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
.grids { display: flex; flex-wrap: wrap; gap: 1rem 2rem; }
figure { margin: .5rem 0; max-width: 56rem; } figcaption { color: var(--faint); font-size: .9rem; }
svg { width: 100%; height: auto; background: var(--panel); border: 1px solid var(--line); border-radius: 6px; }
svg text { fill: var(--ink); font: 12px system-ui, "Liberation Sans", sans-serif; } svg .label { font: 12px ui-monospace, "Liberation Mono", monospace; }
svg .grid { stroke: var(--line); } svg .window { fill: var(--line); opacity: .45; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; font-size: .9rem; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
.s4 { color: var(--s4); } .s5 { color: var(--s5); } .s6 { color: var(--s6); } .s7 { color: var(--s7); }
@media print { main { max-width: none; } .scroll { overflow: visible; } }
)css";
}

}  // namespace oscar::html
