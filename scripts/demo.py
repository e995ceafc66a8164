"""`make demo`: runs notebooks/quickstart.ipynb as a person would and prints what it found.

The executed notebook, with its outputs, is left under ``notebooks/.kforge/``; the one in git is not
touched.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
KEPT = NOTEBOOK.parent / ".kforge"
LINES = 40
CELL_LIMIT_S = 900
START_LIMIT_S = 180


def main() -> int:
    """Run, print each cell's result as it comes, and say how long it took."""
    begun = time.monotonic()
    print(f"running {NOTEBOOK.name}: four to ten minutes; each cell is told at its end", flush=True)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kforge-demo-") as folder:
        client = NotebookClient(
            notebook,
            km=_kernel(Path(folder)),
            timeout=CELL_LIMIT_S,
            startup_timeout=START_LIMIT_S,
            resources={"metadata": {"path": str(NOTEBOOK.parent)}},
            on_cell_executed=_print_cell,
        )
        try:
            client.execute(cleanup_kc=True)
        except (CellExecutionError, DeadKernelError) as error:
            print(f"The notebook did not run through: {error}", file=sys.stderr)
            return 1
        finally:
            nbformat.write(notebook, KEPT / NOTEBOOK.name)
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    where = (KEPT / NOTEBOOK.name).relative_to(ROOT)
    print(f"\nThe notebook took {minutes}:{seconds:02d}; with its outputs it is in {where}")
    print("Open it, or your own, with `make lab`.")
    return 0


def _kernel(folder: Path) -> AsyncKernelManager:
    """The kernel of this very environment, whatever kernels the user has registered."""
    specs = KernelSpecManager(kernel_dirs=[str(Path(sys.prefix) / "share" / "jupyter" / "kernels")])
    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=specs,
        transport="ipc",
        connection_file=str(folder / "kernel.json"),
    )


def _print_cell(cell: Any, cell_index: int, execute_reply: Any) -> None:  # noqa: ARG001
    """First line of the cell, then its texts."""
    texts = [text for output in cell.get("outputs", []) if (text := _text(output))]
    first = next((line for line in cell["source"].splitlines() if line.strip()), "")
    print(f"\n>>> {first}", flush=True)
    for text in texts:
        lines = text.rstrip().splitlines()
        print("\n".join(lines[:LINES]))
        if len(lines) > LINES:
            print(f"… {len(lines) - LINES} more lines")


def _text(output: Any) -> str:
    """What a terminal can show of an output; nothing for figures and widgets."""
    if output["output_type"] == "stream":
        lines = str(output["text"]).splitlines(keepends=True)
        return "".join(line for line in lines if "%|" not in line)  # progress bars
    text = str(output.get("data", {}).get("text/plain", ""))
    hidden = text.startswith(("<Figure", "<kforge_nb.view.widget")) or "%|" in text
    return "" if hidden else text


if __name__ == "__main__":
    sys.exit(main())
