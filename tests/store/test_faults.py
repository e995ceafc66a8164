"""Kill -9, full disks, locks, damage, newer versions: one clear message, and nothing lost."""

import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from kforge_nb.errors import StoreError
from kforge_nb.store import Store
from kforge_nb.store.migrations import MIGRATIONS
from kforge_nb.store.owner import Owner
from tests.store.filling import fill

RUNNER = """
import sys
from kforge_nb.store import Store
store = Store(sys.argv[1])
run = store.create_run("victim", state="searching")
store.add_target(run, 0, {"fingerprint": "f"})
i = 0
while True:
    store.add_node(run, f"0.{i}", target=0, parent=None, action="draft",
                   candidate={"source": "x" * 5000 + str(i)},
                   evaluation={"verdict": "wrong", "log": "y" * 5000}, cost={"usd": 0.25})
    print(i, flush=True)  # said only after it was committed
    i += 1
"""


def killed_run(path, after):
    """A process that is killed (kill -9) while it writes; returns the last node it spoke of."""
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(path)], stdout=subprocess.PIPE, text=True
    )
    for line in runner.stdout:
        last = int(line)
        if last >= after:
            runner.kill()
            break
    rest = [int(x) for x in runner.stdout.read().split()]
    runner.wait()
    assert runner.returncode == -signal.SIGKILL
    return max([last, *rest])


@pytest.mark.parametrize("after", [0, 7, 23])
def test_kill_9_loses_no_finished_evaluation(tmp_path, after):
    """Whatever was reported before kill -9 must be in the store, whole, and the run resumable."""
    last = killed_run(tmp_path / "store.db", after)
    with Store(tmp_path / "store.db") as store:
        run = store.find_run("victim")
        nodes = store.nodes(run, sources=True)
        assert len(nodes) >= last + 1
        assert [n["id"] for n in nodes] == [f"0.{i}" for i in range(len(nodes))]
        assert all(n["candidate"]["source"].endswith(str(i)) for i, n in enumerate(nodes))
        assert len(store.costs(run)) == len(nodes)
        with store.database.read() as c:
            assert c.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert store.sweep() == [run]
        assert store.run(run)["state"] == "interrupted"
        assert "resume" in store.run(run)["state_reason"]
        store.claim(run)
        store.update_run(run, state="searching", state_reason="")
        assert store.sweep() == []  # it is ours now


def test_a_live_run_is_not_swept_nor_stolen(tmp_path):
    """While a process works on a run nobody else may take, delete or mark it."""
    path = tmp_path / "store.db"
    code = RUNNER.replace("    i += 1", "    sys.stdin.readline()")
    runner = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    runner.stdout.readline()
    with Store(path) as store:
        run = store.find_run("victim")
        assert store.sweep() == []
        for call in (store.claim, store.delete_run):
            with pytest.raises(StoreError, match=f"process {runner.pid} .* works on run"):
                call(run)
        runner.kill()
        runner.communicate()
        store.claim(run)


def test_finished_runs_are_left_alone(store):
    """A run that ended in order stays as it is when its process is long gone."""
    done, open_ = store.create_run(state="searching"), store.create_run(state="searching")
    store.update_run(done, state="done", state_reason="budget")
    for run in (done, open_):
        store.release(run)
    assert store.sweep() == [open_]
    assert store.run(done)["state_reason"] == "budget"


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        ({}, True),
        ({"started": "1"}, False),  # the id was handed out again
        ({"boot": "another"}, False),  # the machine was started again
        ({"pid": 2**22 + 1}, False),
        ({"host": "elsewhere"}, True),  # cannot be asked, but gave a sign of life lately
    ],
)
def test_who_is_alive(change, alive):
    """A process id alone must not make a dead run look alive."""
    me = Owner.me()
    fields = {k: getattr(me, k) for k in ("host", "boot", "pid", "started")}
    assert Owner(**{**fields, **change}).alive(beat=1000.0, now=1010.0) is alive


def test_a_silent_process_elsewhere_is_dead():
    """On another machine only the heartbeat speaks; without it for long the run is an orphan."""
    me = Owner.me()
    there = Owner("elsewhere", me.boot, me.pid, me.started)
    assert not there.alive(beat=1000.0, now=5000.0)
    assert not there.alive(beat=None, now=5000.0)


def test_a_full_disk_loses_nothing(store, example):
    """When the disk is full the write fails whole, what was there stays, and later it goes on."""
    run = fill(store, example)
    before = store.nodes(run, sources=True)
    c = store.database.connection()
    pages = c.execute("PRAGMA page_count").fetchone()[0]
    most = c.execute("PRAGMA max_page_count").fetchone()[0]
    c.execute(f"PRAGMA max_page_count = {pages + 2}")
    node = {"target": 0, "parent": "0.0", "action": "optimise"}
    body = {
        "candidate": {"source": os.urandom(300_000).hex()},
        "evaluation": {"verdict": "wrong", "log": "z"},
    }
    with pytest.raises(StoreError, match="disk is full"):
        store.add_node(run, "0.99", **node, **body, cost={"usd": 3.0})
    assert store.nodes(run, sources=True) == before
    assert all(cost["usd"] != 3.0 for cost in store.costs(run))
    c.execute(f"PRAGMA max_page_count = {most}")
    store.add_node(run, "0.99", **node, **body)
    assert len(store.nodes(run)) == len(before) + 1


LIMITED = """
import resource, signal, sys
from kforge_nb.errors import StoreError
from kforge_nb.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(sys.argv[1])
run = store.create_run("limited")
store.add_target(run, 0, {"fingerprint": "f"})
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
for i in range(10_000):
    try:
        store.add_node(run, f"0.{i}", target=0, parent=None, action="draft",
                       candidate={"source": str(i)}, evaluation={"verdict": "wrong"})
    except StoreError as e:
        print(i, str(e), flush=True)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert len(store.nodes(run)) == i, (len(store.nodes(run)), i)
store.add_node(run, f"0.{i}", target=0, parent=None, action="draft",
               candidate={"source": "after"}, evaluation={"verdict": "wrong"})
print(len(store.nodes(run)), "went on")
"""


def test_the_system_refusing_to_write(tmp_path):
    """A real write error of the system must be one StoreError, lose nothing, and not be final."""
    out = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    first, last = out.stdout.splitlines()
    assert "the store" in first
    assert "disk" in first
    assert last == f"{int(first.split()[0]) + 1} went on"


def test_a_locked_store_says_so(tmp_path):
    """A lock that another program holds must end in a message, and the next try must work."""
    with Store(tmp_path / "store.db", busy_s=0.2) as store:
        run = store.create_run()
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"locked by another process for 0\.2 s"):
            store.add_event(run, "x")
        assert store.run(run)["name"] == "run1"  # reading goes on
        other.execute("ROLLBACK")
        store.add_event(run, "x")
        other.close()


def test_garbage_is_not_overwritten(tmp_path):
    """A file that is no database must be left byte for byte as it is."""
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database at all, " * 200)
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="damaged or not a store"):
            Store(path, read_only=read_only)
    assert path.read_bytes() == before


def test_damage_in_the_middle_is_named(tmp_path, example):
    """Bytes lost inside the file must end in a StoreError, not in wrong records."""
    path = tmp_path / "store.db"
    with Store(path) as store:
        run = fill(store, example)
        store.database.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xaa" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"), Store(path) as store:
        store.nodes(run, sources=True)


def test_a_damaged_blob_is_named(store):
    """A source whose bytes have changed must not be taken for the judged one."""
    digest = store.put_blob("int main() {}")
    other = store.put_blob("something else")
    with store.transaction() as c:
        c.execute(
            "UPDATE blobs SET data = (SELECT data FROM blobs WHERE digest = ?) WHERE digest = ?",
            (other, digest),
        )
    with pytest.raises(StoreError, match="content has changed"):
        store.blob(digest)


def test_a_newer_store_is_not_touched(tmp_path):
    """A store of a newer version must ask for an upgrade and stay as it is."""
    path = tmp_path / "store.db"
    with Store(path) as store:
        store.create_run()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer kforge_nb .*upgrade"):
        Store(path)
    assert path.read_bytes() == before


def test_a_foreign_database_is_not_touched(tmp_path):
    """Another program's database must not get our tables."""
    path = tmp_path / "store.db"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE theirs (x)")
    raw.commit()
    raw.close()
    with pytest.raises(StoreError, match="another program"):
        Store(path)
    raw = sqlite3.connect(path)
    assert [r[0] for r in raw.execute("SELECT name FROM sqlite_schema")] == ["theirs"]
    raw.close()


def test_places_that_cannot_hold_a_store(tmp_path):
    """A folder that cannot be made, a folder in the file's place, a missing file: all are said."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be made .*--store FOLDER"):
        Store(tmp_path / "file" / "store.db")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "missing.db", read_only=True)
    with pytest.raises(StoreError, match="cannot be"):
        Store("/proc/store.db")


def test_a_read_only_store_refuses_to_write(tmp_path):
    """Opened for reading only, a write must be refused with a reason and reading must go on."""
    with Store(tmp_path / "store.db") as store:
        run = store.create_run()
    with Store(tmp_path / "store.db", read_only=True) as store:
        with pytest.raises(StoreError, match="cannot be written"):
            store.add_event(run, "x")
        assert store.run(run)["id"] == run


def test_a_closed_store_says_so(tmp_path):
    """Using a store after close must be a StoreError, from the closing thread and from others."""
    store = Store(tmp_path / "store.db")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.runs()


def test_a_fork_opens_its_own_connection(store):
    """A forked child must not use (or close) its parent's connection."""
    run = store.create_run()
    mine = store.database.connection()
    child = os.fork()
    if child == 0:
        try:
            store.add_event(run, "child")
            os._exit(1 if store.database.connection() is mine else 0)
        except BaseException:  # noqa: BLE001 - a child must never run the parent's tests
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    store.add_event(run, "parent")
    assert [e["kind"] for e in store.events(run)] == ["child", "parent"]
