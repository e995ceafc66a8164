"""The tables of a store, as a list of steps from one schema version to the next.

A released step is never changed; a new version appends one. ``PRAGMA user_version`` of a store is
the number of steps it has been through. JSON columns hold plain records whose inner shape is
that of the run document.
"""

from __future__ import annotations

__all__ = ["APPLICATION_ID", "MIGRATIONS"]

APPLICATION_ID = 0x6B466F72
"""Marks a SQLite file as a kforge store ("kFor")."""

_FIRST = (
    """CREATE TABLE runs (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
        state_reason TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL,
        versions TEXT NOT NULL, device TEXT NOT NULL, options TEXT NOT NULL,
        workload TEXT NOT NULL, progress TEXT NOT NULL, fidelity TEXT NOT NULL,
        recommendation TEXT NOT NULL, counters TEXT NOT NULL,
        host TEXT, boot TEXT, pid INTEGER, started TEXT, beat REAL
    ) STRICT""",
    """CREATE TABLE targets (
        run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, idx INTEGER NOT NULL,
        fingerprint TEXT NOT NULL, record TEXT NOT NULL, files TEXT NOT NULL,
        PRIMARY KEY (run, idx)
    ) STRICT""",
    """CREATE TABLE blobs (digest TEXT PRIMARY KEY, size INTEGER NOT NULL, data BLOB NOT NULL)
    STRICT""",
    """CREATE TABLE nodes (
        run TEXT NOT NULL, id TEXT NOT NULL, target INTEGER NOT NULL, number INTEGER NOT NULL,
        parent TEXT, action TEXT NOT NULL, digest TEXT NOT NULL, candidate TEXT NOT NULL,
        source TEXT NOT NULL REFERENCES blobs(digest), evaluation TEXT NOT NULL,
        log TEXT NOT NULL REFERENCES blobs(digest), seconds REAL NOT NULL,
        visits INTEGER NOT NULL, value REAL, created TEXT NOT NULL,
        PRIMARY KEY (run, id),
        FOREIGN KEY (run, target) REFERENCES targets(run, idx) ON DELETE CASCADE,
        FOREIGN KEY (run, parent) REFERENCES nodes(run, id)
    ) STRICT""",
    "CREATE INDEX nodes_order ON nodes (run, target, number)",
    "CREATE INDEX nodes_parent ON nodes (run, parent)",
    "CREATE INDEX nodes_source ON nodes (source)",
    "CREATE INDEX nodes_log ON nodes (log)",
    """CREATE TABLE costs (
        seq INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
        target INTEGER, node TEXT, calls INTEGER NOT NULL, tokens_in INTEGER NOT NULL,
        tokens_out INTEGER NOT NULL, usd REAL, seconds REAL NOT NULL, created TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX costs_run ON costs (run)",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, kind TEXT NOT NULL,
        record TEXT NOT NULL, created TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX events_run ON events (run, seq)",
    """CREATE TABLE decisions (
        run TEXT NOT NULL, target INTEGER NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (run, target),
        FOREIGN KEY (run, target) REFERENCES targets(run, idx) ON DELETE CASCADE
    ) STRICT""",
    """CREATE TABLE whole (
        run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, place INTEGER NOT NULL,
        record TEXT NOT NULL, PRIMARY KEY (run, place)
    ) STRICT""",
    """CREATE TABLE entries (
        run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, key TEXT NOT NULL,
        value TEXT NOT NULL, PRIMARY KEY (run, key)
    ) STRICT""",
)

_CALLS = (
    "ALTER TABLE costs ADD COLUMN model TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE costs ADD COLUMN tokens_cached INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE costs ADD COLUMN tokens_reasoning INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE costs ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE costs ADD COLUMN prompt TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE costs ADD COLUMN purpose TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE costs ADD COLUMN state TEXT NOT NULL DEFAULT 'done'",
    "ALTER TABLE costs ADD COLUMN problem TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE costs ADD COLUMN sent TEXT REFERENCES blobs(digest)",
    "ALTER TABLE costs ADD COLUMN answer TEXT REFERENCES blobs(digest)",
    "CREATE INDEX costs_sent ON costs (sent)",
    "CREATE INDEX costs_answer ON costs (answer)",
)
"""Calls of language models: what was sent and answered, and how far a call came."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _CALLS)
