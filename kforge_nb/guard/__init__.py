"""The guard: torch.compile backend, launch op, in-model decisions, apply and undo."""
