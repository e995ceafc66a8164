"""A profile as HTML: no script, readable in light and dark, every text escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from kforge_nb.profile.text import cells, headings, rest_cells, summary

if TYPE_CHECKING:
    from kforge_nb.profile.table import Profile, Row

__all__ = ["profile_html"]

LIMIT = 40
_STYLE = """
<style>
.kforge-profile { --kf-text: var(--jp-ui-font-color1, #1f2328); --kf-dim: #6b7280;
  --kf-line: var(--jp-border-color2, #d8dee4); --kf-bar: #2f6f9f; --kf-above: #e0a03a;
  color: var(--kf-text); font: 13px/1.45 var(--jp-ui-font-family, system-ui, sans-serif);
  max-width: 100%; overflow-x: auto; }
@media (prefers-color-scheme: dark) { .kforge-profile { --kf-text:
  var(--jp-ui-font-color1, #e6edf3); --kf-dim: #9aa5b1; --kf-line:
  var(--jp-border-color2, #30363d); --kf-bar: #5aa2d6; --kf-above: #e5b567; } }
.kforge-profile table { border-collapse: collapse; background: transparent; color: inherit; }
.kforge-profile th, .kforge-profile td { padding: 3px 10px; text-align: right; border: 0;
  border-bottom: 1px solid var(--kf-line); white-space: nowrap; background: transparent; }
.kforge-profile th { color: var(--kf-dim); font-weight: 600; }
.kforge-profile .kf-l { text-align: left; }
.kforge-profile .kf-v { color: var(--kf-dim); }
.kforge-profile .kf-bar { display: inline-block; width: 90px; height: 9px; margin-right: 8px;
  vertical-align: middle; border-radius: 2px; background: var(--kf-line); overflow: hidden; }
.kforge-profile .kf-bar i { display: block; float: left; height: 100%; }
.kforge-profile .kf-flag { border: 1px solid var(--kf-above); border-radius: 9px;
  padding: 0 8px; margin-left: 8px; font-size: 12px; }
.kforge-profile ul { margin: 6px 0 0; padding-left: 18px; color: var(--kf-dim); }
</style>
"""


def profile_html(profile: Profile, limit: int = LIMIT) -> str:
    """The summary, the ``limit`` largest targets and the notes as one HTML fragment."""
    flag = (
        '<span class="kf-flag" title="the device waits for the host most of the time">'
        "launch-bound</span>"
        if profile.launch_bound
        else ""
    )
    text = escape(summary(profile).removesuffix("; launch-bound"))
    head = "".join(
        f'<th class="{_side(i)}" scope="col">{escape(h)}</th>'
        for i, h in enumerate(headings(profile))
    )
    body = "".join(_line(row) for row in profile.rows[:limit])
    if profile.rows and profile.everything_else is not None:
        body += _last_line(profile)
    return (
        f'{_STYLE}<div class="kforge-profile"><p>{text}{flag}</p>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{_rest(profile, limit)}{_notes(profile)}</div>"
    )


def _side(column: int) -> str:
    return "kf-l" if column in (1, 2, 8) else ""


def _line(row: Row) -> str:
    texts = cells(row)
    parts = []
    for i, text in enumerate(texts):
        content = escape(text)
        if i == 5:
            content = _bar(row) + content
        title = ""
        if i == 1:
            title = f' title="{escape(", ".join(row.modules) or "the root module", quote=True)}"'
        parts.append(f'<td class="{_side(i)}"{title}>{content}</td>')
    return f'<tr class="{"kf-v" if row.vendor else ""}">{"".join(parts)}</tr>'


def _last_line(profile: Profile) -> str:
    """What no row has."""
    texts = "".join(
        f'<td class="{_side(i)}">{escape(text)}</td>' for i, text in enumerate(rest_cells(profile))
    )
    return f'<tr class="kf-v">{texts}</tr>'


def _bar(row: Row) -> str:
    """Share as a bar: time at the roofline, then the time above it."""
    share = 100 * (row.share or 0.0)
    needed = share / (row.headroom or 1.0)
    return (
        '<span class="kf-bar" aria-hidden="true">'
        f'<i style="width:{needed:.1f}%;background:var(--kf-bar)"></i>'
        f'<i style="width:{share - needed:.1f}%;background:var(--kf-above)"></i></span>'
    )


def _rest(profile: Profile, limit: int) -> str:
    if not profile.rows:
        return "<p>No targets: nothing in this workload can be replaced at this granularity.</p>"
    more = len(profile.rows) - limit
    return f"<p>… and {more} more in <code>.table</code></p>" if more > 0 else ""


def _notes(profile: Profile) -> str:
    if not profile.notes:
        return ""
    return "<ul>" + "".join(f"<li>{escape(n)}</li>" for n in profile.notes) + "</ul>"
