"""Judging CUDA candidates: a runner process with its own context, and the judge's end of it."""

__all__: list[str] = []
