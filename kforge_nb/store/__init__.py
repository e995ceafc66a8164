"""The store: SQLite records of runs, and the run document."""
