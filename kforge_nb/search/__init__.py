"""Search: trees, selection, allocation between targets, stopping. Pure."""
