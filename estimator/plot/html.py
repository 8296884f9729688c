"""The picture as a page of its own, with the values under the mouse. Nothing is loaded from elsewhere."""

from __future__ import annotations

import json
from html import escape

from estimator.plot import style, svg
from estimator.timeline import Timeline

SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const picture = document.querySelector("svg");
const line = document.getElementById("cursor");
const set = (id, text) => { document.getElementById(id).textContent = text; };
function size(count) {
  for (const [unit, name, digits] of [[2 ** 30, "GiB", 2], [2 ** 20, "MiB", 1], [1, "KiB", 1]])
    if (count >= unit) return (count / Math.max(unit, 1024)).toFixed(digits) + " " + name;
  return "0";
}
function show(sample, label) {
  data.bytes.forEach((row, index) => set("o" + index, size(row[sample])));
  set("reserved", size(data.reserved[sample]));
  set("moment", label);
}
function sampleAt(event) {
  let low = 0, high = data.at.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.at[middle] < event) low = middle + 1; else high = middle;
  }
  return low;
}
function phaseAt(event) {
  const found = data.intervals.find(([begin, end]) => begin <= event && event < end);
  return found ? (found[2] === "setup" ? "setup" : `step ${found[3] + 1}, ${found[2]}`) : "";
}
function rest() { line.style.display = "none"; show(data.peak, "at the peak"); }
picture.addEventListener("mousemove", moved => {
  const box = picture.getBoundingClientRect();
  const x = (moved.clientX - box.left) * data.width / box.width;
  if (x < data.left || x > data.right) return rest();
  const sample = sampleAt((x - data.left) / (data.right - data.left) * data.events);
  const at = data.left + (data.right - data.left) * data.at[sample] / data.events;
  line.setAttribute("x1", at); line.setAttribute("x2", at); line.style.display = "";
  show(sample, `event ${data.at[sample]}: ${phaseAt(data.at[sample])}`);
});
picture.addEventListener("mouseleave", rest);
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>body{{margin:0;background:{light}}}
svg{{display:block;margin:0 auto;width:100%;max-width:1100px;height:auto}}
@media (prefers-color-scheme:dark){{body{{background:{dark}}}}}{stylesheet}</style>
</head>
<body>
<svg viewBox="0 0 {width} {height}" font-family="{font}" font-size="12" role="img">
<rect class="paper" width="{width}" height="{height}"/>{body}
<line id="cursor" class="peak" y1="{top}" y2="{bottom}" style="display:none"/>
</svg>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def html(timeline: Timeline, title: str) -> str:
    """The whole page."""
    data = {
        "at": timeline.at,
        "bytes": timeline.bytes,
        "reserved": timeline.reserved,
        "peak": timeline.peak,
        "events": max(timeline.events, 1),
        "intervals": [[one.begin, one.end, one.phase, one.step] for one in timeline.intervals],
        "left": svg.LEFT,
        "right": svg.RIGHT,
        "width": svg.WIDTH,
    }
    return PAGE.format(
        title=escape(f"{title}: {style.subtitle(timeline)}"),
        light=svg.LIGHT["paper"],
        dark=svg.DARK["paper"],
        stylesheet=svg.stylesheet(),
        width=svg.WIDTH,
        height=svg.height(timeline),
        font=escape(svg.FONT),
        body=svg.body(timeline, title),
        top=svg.TOP,
        bottom=svg.TOP + svg.HEIGHT,
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        script=SCRIPT,
    )
