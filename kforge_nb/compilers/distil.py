"""Cut a compiler's log down to what helps to repair the source: the first errors, with their lines.

One mistake in a template prints hundreds of lines of notes. What a proposer (or a person) needs is
the message, the line number in the candidate's own source, and that line.
"""

from __future__ import annotations

import re

__all__ = ["distil"]

MAX_ERRORS = 8
_MESSAGE = re.compile(
    r"^(?P<file>[^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? "
    r"(?P<kind>fatal error|error): (?P<text>.*)$"
)
_LINKER = re.compile(
    r"undefined (?:reference|symbol)|required symbol|multiple definition|cannot find -l|"
    r"internal compiler error|out of memory|virtual memory exhausted|cannot allocate|Killed"
)
_FOLDER = re.compile(r"(?:/[^\s:'\"]*)+/(?=[^\s/:'\"]+)")


def distil(log: str, source: str, file_name: str) -> str:
    """The first errors of ``log``.

    Args:
        log: what the compiler and linker printed.
        source: the candidate's source, to quote lines from.
        file_name: the name under which the source was compiled.

    Returns:
        At most eight errors, each with the line of the source; folders are left out. If no error is
        recognised, the last lines of the log.
    """
    lines = source.splitlines()
    found: list[str] = []
    seen: set[str] = set()
    for entry in log.splitlines():
        text = _error(entry, lines, file_name)
        if text is not None and text not in seen:
            seen.add(text)
            found.append(text)
    if not found:
        tail = [line for line in log.strip().splitlines() if line.strip()][-6:]
        return _FOLDER.sub("", "\n".join(tail)) or "the compiler failed and printed nothing"
    more = len(found) - MAX_ERRORS
    return "\n".join(found[:MAX_ERRORS]) + (f"\n… and {more} more" if more > 0 else "")


def _error(entry: str, lines: list[str], file_name: str) -> str | None:
    message = _MESSAGE.match(entry)
    if message is None:
        return _FOLDER.sub("", entry).strip() if _LINKER.search(entry) else None
    number, text = int(message["line"]), message["text"]
    if not message["file"].endswith(file_name):
        return f"{_FOLDER.sub('', message['file'])}:{number}: error: {text}"
    quoted = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return f"line {number}: error: {text}" + (f"\n    {quoted[:200]}" if quoted else "")
