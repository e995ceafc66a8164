"""The generator: C++ for any element-wise and row-reduction region, from its graph.

The way of a target: :mod:`trace` brings its graph to ATen operators, :mod:`lower` (with
:mod:`point`, :mod:`reduce` and :mod:`views`) to values over index spaces, :mod:`nest` plans rows
and passes, :mod:`optimise` and :mod:`tasks` shape the loops, :mod:`source` writes C++.
"""

from kforge_nb.candidates.recipes.generator.family import GENERATOR, Generator, why_not

__all__ = ["GENERATOR", "Generator", "why_not"]
