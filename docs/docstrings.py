"""Docstrings as the reference shows them."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Show sections named `Example` as code, as sections named `Examples` are."""

    def on_object(self, *, obj: griffe.Object, **unused: Any) -> None:
        """Rename the section before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
