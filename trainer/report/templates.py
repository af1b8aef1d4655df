"""The templates of this package; they escape every text that is not marked as HTML."""

from pathlib import Path

import jinja2

HERE = Path(__file__).parent
_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render(template: str, **data) -> str:
    """What a template makes of data."""
    return _ENVIRONMENT.get_template(template).render(data)
