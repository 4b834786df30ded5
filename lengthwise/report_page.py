"""The look and the behaviour of a report's page: its style sheet, its script, its frame."""

from __future__ import annotations

# Nothing may be fetched from anywhere, whatever is in the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

STYLE = """
:root { color-scheme: light; --line: #d9d9d9; --soft: #f4f6f8; --ink: #1c1c1c; --blue: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 76rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 2px solid var(--blue); }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; overflow-wrap: anywhere; }
p, li { overflow-wrap: anywhere; max-width: 60rem; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
thead th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
thead th { white-space: normal; }
#figures thead th, #worst td:first-child { max-width: 10rem; white-space: normal;
  overflow-wrap: anywhere; }
#figures thead th { min-width: 5rem; }
#worst td:first-child { min-width: 8.2rem; }
tbody tr:hover td, tbody tr:hover th { background: var(--soft); }
tr.group th { text-align: left; padding-top: .8rem; }
td.best { font-weight: 700; }
td.best::before { content: "★ "; color: var(--blue); }
td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: #444; font-size: .9rem; }
summary { cursor: pointer; padding: .3rem 0; font-weight: 600; overflow-wrap: anywhere; }
th button { font: inherit; font-weight: 700; color: inherit; background: none; border: 0;
  padding: 0; cursor: pointer; text-align: right; }
th button:focus-visible { outline: 2px solid var(--blue); }
th[aria-sort="ascending"] button::after { content: " ▲"; }
th[aria-sort="descending"] button::after { content: " ▼"; }
table.sortable { font-size: .82rem; }
table.sortable th, table.sortable td { padding: .2rem .4rem; }
.bar { display: flex; width: 8rem; height: .85rem; border: 1px solid #777; }
.bar span { display: block; height: 100%; }
.queued { background: #e69f00; }
.prefill { background: #0072b2; }
.decode { background: #56b4e9; }
.preempted { background: repeating-linear-gradient(45deg, #d55e00 0 3px, #fff 3px 5px); }
.key span { display: inline-block; width: 1.4em; height: .8em; margin: 0 .3em 0 1em;
  border: 1px solid #777; }
@media (max-width: 600px) { body { padding: .7rem; font-size: 14px; } }
@media print { details { display: block; } }
"""

SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value;
      const order = (a, b) => {
        const x = value(a), y = value(b);
        if (x === "" || y === "") return (x === "") - (y === "");  // what is undefined comes last
        const up = head.dataset.kind === "text" ? x.localeCompare(y) : x - y;
        return falling ? -up : up;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
"""

FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def page(title: str, body: str) -> str:
    """A whole page; `title` and `body` are HTML already."""
    return FRAME.format(policy=POLICY, title=title, style=STYLE, body=body, script=SCRIPT)
