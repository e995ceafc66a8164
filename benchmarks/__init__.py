"""Benchmarks: every timed claim of the project is a command in this package."""
