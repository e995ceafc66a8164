"""``python -m benchmarks.view``: how smooth a tree of 2,000 candidates is, and what is sent for it.

In Chromium, with the shipped bundle on a page: time between frames while a pointer pans and a
wheel zooms, near (each candidate drawn) and far (all of them as dots), and how long the page takes
for the whole document and for one more candidate. Beside it the bytes of what the kernel sends: the
whole document to a page that opens, and a message for each judged candidate.

A frame cannot come sooner than the screen's next one: 16.7 ms is the best there is at 60 Hz.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import add_json_option, make_report, measure_row, write_report
from kforge_nb.view.deltas import Encoder
from kforge_nb.view.payload import for_widget, size
from tests.browser.servers import chromium, serving_page, why_no_browser
from tests.view.large import large

Row = dict[str, Any]
STEPS = 90
LAST = 20

WATCH = """() => {
  const seen = { gaps: [], last: performance.now() };
  const step = (now) => {
    seen.gaps.push(now - seen.last);
    seen.last = now;
    seen.next = requestAnimationFrame(step);
  };
  seen.next = requestAnimationFrame(step);
  window.seen = seen;
}"""
STOP = "() => { cancelAnimationFrame(seen.next); return seen.gaps.slice(2); }"
DRAWN = """([act, given]) => new Promise((done) => {
  const begun = performance.now();
  kforge[act](given);
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun)));
})"""
STILL = """() => new Promise((done) => {
  let [last, still] = ["", 0];
  const step = () => {
    const now = document.querySelector("[role=tree] > g").getAttribute("transform");
    still = now === last ? still + 1 : 0;
    last = now;
    if (still < 10) requestAnimationFrame(step);
    else done();
  };
  step();
})"""


def main(argv: list[str] | None = None) -> int:
    """Measure, and print or write the report; 1 where no browser can be driven."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.view", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000, help="candidates in the tree")
    add_json_option(parser)
    options = parser.parse_args(argv)
    missing = why_no_browser()
    if missing is not None:
        sys.stderr.write(f"benchmarks.view needs Chromium and Playwright: {missing}\n")
        return 1
    run = large(options.nodes)
    with tempfile.TemporaryDirectory() as folder, serving_page(Path(folder)) as address:
        rows = payload(run) + frames(address, run)
    write_report(make_report("view", rows), options.json)
    return 0


def payload(run: dict[str, Any]) -> list[Row]:
    """Bytes, as JSON, of the messages that a live view of this run is sent."""
    encoder = Encoder()
    encoder.advance(for_widget(without(run, LAST)))
    each = [size(encoder.advance(for_widget(without(run, n)))) for n in range(LAST - 1, -1, -1)]
    progress = {**run, "progress": {**run["progress"], "message": "timing it again"}}
    details = [size(found) for found in list(run["details"].values())[:LAST]]
    return [
        measure_row("whole document, to a page that opens", size(encoder.whole()), "bytes"),
        spread("a judged candidate", each, "bytes"),
        measure_row("a sentence of progress", size(encoder.advance(for_widget(progress))), "bytes"),
        spread("details of a candidate, on a click", details, "bytes"),
    ]


def without(run: dict[str, Any], last: int) -> dict[str, Any]:
    """The run as it was before its last candidates were judged."""
    nodes = run["nodes"][: len(run["nodes"]) - last]
    known = {node["id"] for node in nodes}
    costs = [cost for cost in run["costs"] if cost["node"] in known]
    progress = {**run["progress"], "judged": len(nodes)}
    targets = [t if t["best"] in known else {**t, "best": None} for t in run["targets"]]
    return {**run, "nodes": nodes, "costs": costs, "progress": progress, "targets": targets}


def frames(address: str, run: dict[str, Any]) -> list[Row]:
    """What a person sees of it in a browser."""
    before = for_widget(without(run, LAST))
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.goto(address)
        page.get_by_role("region", name="Run minilm").wait_for()
        drawn = page.evaluate(DRAWN, ["show", before])
        tree = page.get_by_role("tree")
        tree.scroll_into_view_if_needed()
        page.evaluate(STILL)
        rows = [measure_row("the whole document, until it is drawn", drawn, "ms")]
        rows.append(spread("one more candidate, until it is drawn", grown(page, run), "ms"))
        for where in ("near", "far"):
            if where == "far":
                page.get_by_role("button", name="Fit").click()
                page.locator(".kforge-dots").first.wait_for(state="attached")
                page.evaluate(STILL)
            rows.append(moved(page, tree, f"panning, {where}: between frames", pan))
            rows.append(moved(page, tree, f"zooming, {where}: between frames", zoom))
        rows.append(measure_row("elements of the tree in the page", count(tree), "elements"))
    return rows


def grown(page: Any, run: dict[str, Any]) -> list[float]:
    """Milliseconds of the page for each of the last candidates."""
    nodes = run["nodes"]
    took = []
    for at in range(len(nodes) - LAST, len(nodes)):
        change = {"lists": {"nodes": {"new": [[at, nodes[at]]]}}}
        took.append(page.evaluate(DRAWN, ["change", change]))
    return took


def moved(page: Any, tree: Any, name: str, act: Any) -> Row:
    """Gaps between frames while something is done to the drawing; what does not move is an error.

    Raises RuntimeError, since a drawing that stands still is always smooth.
    """
    camera = "document.querySelector('[role=tree] > g').getAttribute('transform')"
    before = page.evaluate(camera)
    box = tree.bounding_box()
    page.evaluate(WATCH)
    act(page, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    gaps = page.evaluate(STOP)
    if page.evaluate(camera) == before:
        raise RuntimeError(f"{name}: the tree did not move")
    return spread(name, gaps, "ms")


def pan(page: Any, x: float, y: float) -> None:
    """A pointer that pulls the drawing about and lets go elsewhere."""
    page.mouse.move(x, y)
    page.mouse.down()
    for i in range(STEPS):
        page.mouse.move(x - (i % 30) * 5, y - (i % 20) * 6)
    page.mouse.up()


def zoom(page: Any, x: float, y: float) -> None:
    """A wheel that goes in and out, and ends further in."""
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    for i in range(STEPS):
        page.mouse.wheel(0, 24 if i % 10 >= 6 else -24)
    page.keyboard.up("Control")


def count(tree: Any) -> int:
    """How many elements the drawing has, far away."""
    found: int = tree.locator("*").count()
    return found


def spread(name: str, values: list[Any], unit: str) -> Row:
    """A row with the median as its value, and the 95th percentile beside it."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return measure_row(
        name,
        round(statistics.median(ordered), 2),
        unit,
        low=round(ordered[0], 2),
        high=round(ordered[-1], 2),
        n=len(ordered),
        p95=round(p95, 2),
    )


if __name__ == "__main__":
    sys.exit(main())
