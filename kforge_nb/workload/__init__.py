"""Workloads: the outermost module calls of a callable, and their Dynamo graphs."""
