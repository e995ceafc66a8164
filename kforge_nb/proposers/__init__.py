"""Proposers: what writes candidates."""
