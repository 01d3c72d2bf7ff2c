"""What tables and charts of the HTML report have in common."""

import html

from ...timeline.commands.arguments import clean


def scrolling(title: str, content: str) -> str:
    """Content that scrolls by itself where the screen is narrow, also by keyboard.

    Args:
        title: what it is, for those who hear the page.
        content: markup.
    """
    label = html.escape(clean(title))
    return f'<div class="scrolls" role="region" tabindex="0" aria-label="{label}">{content}</div>'
