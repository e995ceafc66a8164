"""Profile: device facts, calibration, timing, roofline and the target table."""
