"""Every exception that kforge_nb raises on purpose, in one tree.

::

    KForgeError
    ├── BadInput         what was asked for cannot be done: an unknown option, a cell without a
    │                    module call, a model on ``meta``, CUDA without a GPU
    ├── MissingTool      a compiler, a package or a device that is needed is not here
    ├── ContractBreach   a candidate's source or launch plan breaks the contract; the judge turns
    │                    it into the verdict ``refused``
    ├── StoreError       the store is locked, damaged, or its disk is full
    └── DocumentError    a run document is not valid, or of a newer schema

A failed *candidate* is never an exception: it is an Evaluation with a verdict and a reason.
Each message says what happened, with which value, and what to do next. How more packages come in is
said by :func:`install` alone, since that changes on the day when kforge_nb is on a package index.
"""

__all__ = [
    "BadInput",
    "ContractBreach",
    "DocumentError",
    "KForgeError",
    "MissingTool",
    "StoreError",
    "install",
    "upgrade",
]


def install(extra: str, *also: str) -> str:
    """The command that adds the packages of an extra, and others named beside it.

    kforge_nb is on no package index, so it is installed from a clone.
    """
    return " ".join([f'pip install ".[{extra}]"', *also]) + " in your clone of kforge_nb"


def upgrade() -> str:
    """How a newer kforge_nb comes in."""
    return "git pull and pip install . in your clone of kforge_nb"


class KForgeError(Exception):
    """Base of all errors raised on purpose; magics show its message without a traceback."""


class BadInput(KForgeError):
    """You asked for something that cannot be done as asked."""


class MissingTool(KForgeError):
    """A compiler, package or device that this step needs is missing on this machine."""


class ContractBreach(KForgeError):
    """A candidate's source or launch plan breaks the contract of docs/candidates.md."""


class StoreError(KForgeError):
    """The store could not be read or written: locked, damaged, or its disk is full."""


class DocumentError(KForgeError):
    """A run document is not valid, or was written by a newer version."""
