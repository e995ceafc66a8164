"""One run: targets in, decisions out. The conductor, its thread, and the handle users hold."""
