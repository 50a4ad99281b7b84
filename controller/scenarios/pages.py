"""Pages of reports: the templates in `templates/`, rendered to HTML that loads nothing.

Values are escaped unless they are `Markup`. jinja2 is imported when the first page is rendered.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from controller.scenarios.palette import page_style, picture_style

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Return a template as text, with these values. UndefinedError if it names a value that is not there."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("controller.scenarios"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.globals["styles"] = Markup(page_style() + picture_style())
    return environment


def _printable(value: Any) -> Any:
    """Replace control characters in text: HTML has no escape for them."""
    if type(value) is str and not value.isprintable():
        return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in value)
    return value
