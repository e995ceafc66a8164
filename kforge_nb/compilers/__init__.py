"""Compilers: source to shared library, one folder a candidate, cached, with a time limit."""
