"""Profile: device facts, calibration, timing, roofline and the target table."""

from kforge_nb._callable import make_callable

make_callable(__name__, "kforge_nb.api", "profile")
