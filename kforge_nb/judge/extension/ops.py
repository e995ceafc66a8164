"""Commands that only a worker with a torch extension on a GPU knows, beside those of protocol.py.

=========  ==========================  ============================================================
op         a, b                        what it does
=========  ==========================  ============================================================
UPLOAD     a first slot, b slots       copies timed inputs to the device, outside the clock
PREPARE    a calls                     captures that many calls, each after a flush of the cache,
                                       as one CUDA graph, and the flushes alone as another
REPLAY     a replays, b 1: empty       replays one of the two; nanoseconds on the device
HOT        a calls                     calls from the host, without a graph, waited for once
=========  ==========================  ============================================================
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Breach", "ExtensionOp", "NotCapturable", "WrongOutput"]


class Breach(Exception):
    """What a worker found against its extension, in words; ``code`` goes into the reply."""

    code = 0


class WrongOutput(Breach):
    """Outputs that are not what the target's are, or inputs that were written to."""

    code = 1


class NotCapturable(Breach):
    """Calls that cannot become a CUDA graph."""

    code = 2


class ExtensionOp(IntEnum):
    """What an extension's worker can do on a GPU."""

    UPLOAD = 16
    PREPARE = 17
    REPLAY = 18
    HOT = 19
