"""Judging torch extensions: host code in a process of its own, the weakest kind of candidate."""
