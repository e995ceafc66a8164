"""The view beside JupyterLab's file browser: what does not fit scrolls, and shows that it does."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BESIDE_FILES = 838
"""Pixels of an output where a window of 1300 has the file browser open."""
PAID = """() => kforge.show({
  device: {kind: "cpu"},
  costs: [{target: 0, node: null, calls: 12, tokens_in: 150000, tokens_cached: 0, tokens_out: 40000,
    tokens_reasoning: 0, estimated: false, usd: 12.5, seconds: 60, model: "m", prompt: "3",
    purpose: "draft", state: "done", problem: "", created: "2026-03-14T09:10:00Z"}],
})"""
FAINT = """() => kforge.show({whole: [], recommendation: null, workload: {
  wall_us: 4e6, device_us: 4e6, launch_bound: false, modules: [],
  notes: ["other processes kept 1.7 cores busy while the model and its targets were timed"]}})"""
FITTED = "document.querySelector('.kforge-costchart').viewBox.baseVal.width < 600"
CUT = """() => {
  const named = (e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 60)}`;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const ends = (e) => getComputedStyle(e).textOverflow === "ellipsis";
  const inside = (part, whole) => {
    const [own, place] = [part, whole].map((e) => e.getBoundingClientRect());
    return own.left >= place.left - 0.5 && own.right <= place.right + 0.5;
  };
  const wide = (e) => e.scrollWidth > e.clientWidth + 1;
  return [
    ...all(".kforge-scroll").filter(wide),
    ...all(".kforge :is(td, th, dd, dt)").filter((e) => wide(e) && !ends(e)),
    ...all(".kforge-costchart text").filter((text) => !inside(text, text.ownerSVGElement)),
    ...all(".kforge th > .kforge-link").filter((name) => !inside(name, name.parentElement)),
  ].map(named);
}"""
SHADED = """() => [...document.querySelectorAll(".kforge-scroll")]
  .filter((e) => e.scrollWidth > e.clientWidth)
  .map((e) => getComputedStyle(e).backgroundAttachment)"""


def opened(page, site, width):
    """The view at a width, of its border included."""
    page.set_viewport_size({"width": width + 16, "height": 900})
    page.goto(site)
    page.get_by_role("region", name="Run minilm").wait_for()
    box = page.locator(".kforge").bounding_box()
    assert box is not None
    assert box["width"] == width


@pytest.mark.parametrize("change", ["() => kforge.show({})", FAINT])
def test_beside_the_file_browser_nothing_is_cut_without_a_sign(page, site, change):
    """All columns fit, and what is shortened ends in an ellipsis, also where shares are rough."""
    opened(page, site, BESIDE_FILES)
    page.evaluate(change)
    page.wait_for_function(FITTED)
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize(("width", "change"), [(BESIDE_FILES, PAID), (600, "() => 0")])
def test_what_scrolls_sideways_is_shaded_at_its_edge(page, site, width, change):
    """Scroll bars are hidden on many systems: a shadow stands where the content goes on."""
    opened(page, site, width)
    page.evaluate(change)
    shaded = page.evaluate(SHADED)
    assert shaded
    assert set(shaded) == {"local, local, scroll, scroll"}
