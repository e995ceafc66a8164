"""Judging kernels in the formats that others write them in, to check a claimed speed-up.

Nothing of such a file ever runs in the process that asks: it is read as text, and its code runs in
confined processes of its own (:mod:`kforge_nb.judge.foreign.judging`).
"""
