"""Our manifests: YAML with placeholders in the folder `manifests/` beside the package, filled in and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import yaml

from loadgen.core.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[2] / "manifests"

_SUFFIX = ".yaml"


def render(name: str, **values: object) -> list[dict[str, Any]]:
    """The objects of manifests/NAME.yaml. ConfigError when there is no such file.

    Values belong into `{{ value | tojson }}`, which is YAML whatever they hold. A placeholder without a value and a
    template that yields no YAML are mistakes of ours and raise as they are.
    """
    try:
        text = (FOLDER / f"{name}{_SUFFIX}").read_text()
    except FileNotFoundError:
        raise ConfigError(
            f"{FOLDER / name}{_SUFFIX} is missing: loadgen has its manifests only in a checkout; run it from one "
            "(pip install -e .)"
        ) from None
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    documents = yaml.safe_load_all(environment.from_string(text).render(**values))
    return [document for document in documents if document is not None]
