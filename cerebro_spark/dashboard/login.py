"""The two pages of the door: without a token, and with one. They hold nothing that came from outside."""

from __future__ import annotations

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.paths import check_id

STYLE = "body{font-family:system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem;color-scheme:light dark}"
"""The one style sheet that is no file: whoever sees these pages gets no files yet."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>cerebro-spark</title><style>{style}</style>{head}</head>
<body><h1>cerebro-spark</h1>{body}</body></html>
"""


def refused_page() -> str:
    """For whoever comes without a token."""
    return _PAGE.format(
        style=STYLE,
        head="",
        body="<p>This dashboard opens with the link that was printed when it was started. The link ends with"
        " <code>?token=…</code>; it is needed once in each browser.</p>",
    )


def entered_page(run: str) -> str:
    """Goes on to the dashboard, or to a run in it.

    Args:
        run: The id of the run; what is no such id is left out.
    """
    try:
        target = f"./#/run/{check_id(run)}" if run else "./"
    except ConfigurationError:
        target = "./"
    return _PAGE.format(
        style=STYLE,
        head=f'<meta http-equiv="refresh" content="0;url={target}">',
        body=f'<p><a href="{target}">Open the dashboard</a></p>',
    )
