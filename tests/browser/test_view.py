"""The shipped bundle on a plain page, as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "store" / "fixtures" / "example.kforge.json"


@pytest.fixture
def run():
    """The run on the page."""
    return json.loads(EXAMPLE.read_text())


def opened(page, site):
    """The view, once it has the run."""
    page.goto(site)
    region = page.get_by_role("region", name="Run minilm")
    region.wait_for()
    return region


def test_headline_targets_and_decisions_are_on_the_page(page, site, run):
    """One look answers what was gained, against what, and what was decided."""
    text = " ".join(opened(page, site).inner_text().split())

    assert "1.06× (1.05 to 1.07) over the same rest (inductor) without kernels" in text
    assert "1.30× (1.29 to 1.31) over the untouched eager model" in text
    assert all(target["name"] in text for target in run["targets"])
    assert text.count("● replaced") == 2


def test_a_click_on_a_node_shows_its_source(page, site, run):
    """Target, then node, then its code, fetched on demand."""
    opened(page, site)
    table = page.get_by_role("grid", name="Targets")
    table.get_by_role("button", name="1 dropout_add_layer_norm").click()
    node = next(n for n in run["nodes"] if n["target"] == 1 and n["verdict"] == "slower")
    page.locator(f'[data-id="{node["id"]}"]').click()

    page.get_by_role("heading", name=f"Node {node['id']}").wait_for()
    shown = page.get_by_label("source").inner_text()
    assert shown.strip() == run["details"][node["id"]]["source"].strip()


def test_the_tree_is_walked_by_keyboard(page, site, run):
    """An arrow key moves selection and focus from the best candidate to its parent."""
    opened(page, site)
    best = run["targets"][0]["best"]
    parent = next(n["parent"] for n in run["nodes"] if n["id"] == best)
    page.locator(f'[data-id="{best}"]').focus()
    page.keyboard.press("ArrowLeft")

    page.locator(f'[data-id="{parent}"][aria-selected="true"]').wait_for()
    assert page.evaluate("document.activeElement.dataset.id") == parent


def test_stop_is_sent_while_the_run_works_and_gone_after(page, site):
    """The button writes the command trait and keeps the focus; a finished run has none."""
    opened(page, site)
    page.evaluate("kforge.show({state: 'searching'})")
    page.get_by_role("button", name="Stop").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Stopping…").wait_for()
    assert page.evaluate("kforge.traits.command")["name"] == "stop"
    assert page.evaluate("document.activeElement.textContent") == "Stopping…"

    page.evaluate("kforge.show({state: 'stopped', state_reason: 'stopped by you'})")
    page.get_by_text("stopped by you").wait_for()
    assert page.get_by_role("button", name="Stop").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(page, site, scheme):
    """Every text stands out from its background by 4.5 to 1 at least."""
    page.emulate_media(color_scheme=scheme)
    opened(page, site)
    worst = page.evaluate((HERE / "contrast.js").read_text())

    assert worst["ratio"] >= 4.5, worst


def test_a_narrow_page_scrolls_inside_the_view_only(page, site):
    """In a slim notebook column nothing sticks out."""
    page.set_viewport_size({"width": 420, "height": 800})
    opened(page, site)

    assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_dispose_leaves_nothing(page, site):
    """What a host mounts it can take away."""
    opened(page, site)
    page.evaluate("kforge.dispose()")

    assert page.locator("#run").inner_html() == ""


def test_the_target_table_is_worked_by_keyboard_alone(page, site):
    """Tab to a header sorts by Enter; Tab into the rows, arrows walk, Enter chooses."""
    opened(page, site)
    page.get_by_role("button", name="speed-up over eager").focus()
    page.keyboard.press("Enter")
    head = page.get_by_role("columnheader", name="speed-up over eager")
    assert head.get_attribute("aria-sort") == "descending"

    rows = page.locator(".kforge-targets tbody tr")
    assert rows.evaluate_all("all => all.filter((row) => row.tabIndex === 0).length") == 1
    page.locator('.kforge-targets tr[tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert (
        page.locator('.kforge-targets tr[aria-selected="true"]').get_attribute("data-target") == "1"
    )


def test_the_targets_are_filtered_and_grouped(page, site):
    """Words narrow the table, and modules gather the rest of it with their sums."""
    opened(page, site)
    page.get_by_label("Filter targets by name, shape or module").fill("output")
    assert page.locator(".kforge-targets tr[data-target]").count() == 1
    page.get_by_label("Filter targets by name, shape or module").fill("")
    page.get_by_role("button", name="By module").click()
    first = page.locator(".kforge-group").first.inner_text()
    assert first.startswith("encoder.layer.*.intermediate 76.5% of the time")


@pytest.mark.parametrize("width", [420, 1100])
def test_marks_of_the_guard_stand_under_the_ticks_of_their_axis(page, site, width):
    """A ratio of 1 is drawn exactly below the label 1×, in every row."""
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, site)
    middles = page.evaluate(
        """() => {
          const middle = (e) => {
            const box = e.getBoundingClientRect();
            return box.left + box.width / 2;
          };
          const table = document.querySelector(".kforge-guard table");
          const label = [...table.querySelectorAll(".kforge-ticks span")]
            .find((tick) => tick.textContent === "1×");
          return [label, ...table.querySelectorAll("u.one")].map(middle);
        }"""
    )
    assert len(middles) == 5
    assert max(middles) - min(middles) < 1.5
