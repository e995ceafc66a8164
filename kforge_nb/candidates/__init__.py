"""Candidates: source plus launch plan, safe expressions, and the built-in recipes."""
