"""The search tree of thousands of candidates under a real pointer, wheel and keyboard."""

from __future__ import annotations

import re

import pytest

from kforge_nb.view.payload import for_widget
from tests.view.large import large

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

# Time between frames, and the script's own time in each, while something else moves.
WATCH = """() => {
  const seen = { gaps: [], last: performance.now() };
  const step = (now) => {
    seen.gaps.push(now - seen.last);
    seen.last = now;
    window.watching = requestAnimationFrame(step);
  };
  window.seen = seen;
  window.watching = requestAnimationFrame(step);
}"""
STOP = "() => { cancelAnimationFrame(watching); return seen.gaps.slice(2).sort((a, b) => a - b); }"

INSIDE = """(what) => {
  const box = document.querySelector(what).getBoundingClientRect();
  const frame = document.querySelector("[role=tree]").getBoundingClientRect();
  const across = box.left >= frame.left && box.right <= frame.right;
  return across && box.top >= frame.top && box.bottom <= frame.bottom;
}"""


@pytest.fixture(scope="module")
def run():
    """2,000 candidates of one target, as a live view holds them."""
    return for_widget(large(2000))


def opened(page, site, run):
    """The tree of a run, once it is drawn."""
    page.goto(site)
    page.get_by_role("region", name="Run minilm").wait_for()
    page.evaluate("(run) => kforge.show(run)", run)
    page.locator(".kforge-search").get_by_text(f"{len(run['nodes'])} candidates").wait_for()
    tree = page.get_by_role("tree")
    tree.scroll_into_view_if_needed()
    settled(page)
    return tree


def settled(page):
    """Waits until the camera stands still for ten frames."""
    page.evaluate(
        """() => new Promise((done) => {
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
    )


def camera(tree):
    """Place and scale of what is seen."""
    text = tree.locator("> g").get_attribute("transform")
    return [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", text)]


def middle(tree):
    """The middle of the frame, and a step that stays inside."""
    box = tree.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page, tree, steps=60):
    """A pointer that pulls the drawing about."""
    x, y = middle(tree)
    page.mouse.move(x, y)
    page.mouse.down()
    for i in range(steps):
        page.mouse.move(x - (i % 30) * 5, y - (i % 20) * 6)
    page.mouse.up()


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_panning_2000_candidates_is_smooth(page, site, run, far):
    """Frames come as often as on an empty page: half of them within 20 ms, however far away."""
    tree = opened(page, site, run)
    if far:
        page.get_by_role("button", name="Fit").click()
        page.wait_for_function("() => document.querySelector('.kforge-dots') !== null")
    before = camera(tree)
    items = tree.get_by_role("treeitem").count()
    page.evaluate(WATCH)
    drag(page, tree)
    gaps = page.evaluate(STOP)

    assert camera(tree)[:2] != before[:2]
    assert items < 400
    assert len(gaps) > 20
    assert gaps[len(gaps) // 2] < 20, gaps


def test_a_wheel_zooms_about_the_pointer_with_ctrl_and_else_scrolls_the_page(page, site, run):
    """In the middle of a notebook a wheel is the page's, unless the tree has the focus."""
    tree = opened(page, site, run)
    x, y = middle(tree)
    page.mouse.move(x, y)
    before, top = camera(tree), page.evaluate("scrollY")
    page.mouse.wheel(0, 60)
    page.wait_for_function("(top) => scrollY !== top", arg=top)
    assert camera(tree) == before

    x, y = middle(tree)
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    page.wait_for_function(
        "(k) => !document.querySelector('[role=tree] > g').getAttribute('transform')"
        ".includes(`scale(${k})`)",
        arg=before[2],
    )
    after, box = camera(tree), tree.bounding_box()
    at = (x - box["x"], y - box["y"])
    for axis in (0, 1):  # what was under the pointer still is
        old = (at[axis] - before[axis]) / before[2]
        assert (at[axis] - after[axis]) / after[2] == pytest.approx(old, abs=1)


def test_the_selection_is_kept_in_sight_by_keyboard(page, site, run):
    """Whatever key is pressed, the node that has the focus lies inside the frame."""
    tree = opened(page, site, run)
    best = run["targets"][0]["best"]
    tree.locator(f'[data-id="{best}"]').focus()
    for key in ["ArrowLeft", "ArrowDown", "ArrowDown", "ArrowLeft", "End", "Home", "ArrowRight"]:
        page.keyboard.press(key)
        focused = page.locator(':focus[role="treeitem"]')
        focused.wait_for()
        page.wait_for_function(INSIDE, arg=":focus .kforge-mark")
    assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"


def test_a_run_that_grows_is_followed_until_it_is_moved(page, site, run):
    """The newest candidate is in sight while the target is searched; the user's hand ends it."""
    nodes = run["nodes"]
    target = {**run["targets"][0], "state": "searching", "best": None}
    live = {**run, "state": "searching", "targets": [target], "nodes": nodes[:500], "costs": []}
    tree = opened(page, site, live)
    follow = page.get_by_role("button", name="Follow the newest")
    assert follow.get_attribute("aria-pressed") == "true"
    for at in range(500, 520):
        row = {**nodes[at], "created": f"2026-03-15T09:00:{at - 500:02d}Z"}
        page.evaluate("(m) => kforge.change(m)", {"lists": {"nodes": {"new": [[at, row]]}}})
        tree.locator(".newest").wait_for()
        page.wait_for_function(INSIDE, arg=".newest .kforge-mark")
    drag(page, tree, steps=5)
    assert follow.get_attribute("aria-pressed") == "false"


def test_drags_choose_nothing_and_clicks_do(page, site, run):
    """A press that moves is a pan; one that does not is a choice."""
    tree = opened(page, site, run)
    heading = page.locator(".kforge-panel h3")
    before = heading.inner_text()
    drag(page, tree, steps=8)
    assert heading.inner_text() == before
    best = run["targets"][0]["best"]
    tree.locator(f'[data-id="{best}"]').focus()
    page.keyboard.press("ArrowLeft")
    parent = next(n["parent"] for n in run["nodes"] if n["id"] == best)
    page.get_by_role("heading", name=f"Node {parent}:").wait_for()
