"""A config as a flat dict, `{"optimizer.learning_rate": 0.001, …}`, and back; results are flattened alike."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict


def flatten(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        is_section = isinstance(value, (ConfigDict, Mapping))
        flat |= flatten(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return flat


def nested(flat: Mapping[str, Any]) -> ConfigDict:
    """{"a.b": 1} → {"a": {"b": 1}}, locked."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        owner = tree
        for section in sections:
            owner = owner.setdefault(section, {})
        owner[name] = value
    return ConfigDict(tree).lock()


def tupled(value: Any) -> Any:
    """What JSON read, with tuples again where a config has them."""
    if isinstance(value, dict):
        return {key: tupled(item) for key, item in value.items()}
    return tuple(tupled(item) for item in value) if isinstance(value, list) else value
