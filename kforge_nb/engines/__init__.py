"""Engines: where evaluations run."""
