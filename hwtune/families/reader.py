"""Reading a config.json without guessing: every miss names the file and the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hwtune.domain.errors import InputError

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "language_model")
_LARGEST = 2**40


@dataclass(slots=True)
class ConfigReader:
    """A config and its text part; remembers which key gave which value."""

    root: Mapping[str, Any]
    source: str
    text: Mapping[str, Any] = field(init=False)
    prefix: str = field(init=False, default="")
    keys: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.text = self.root
        thinker = self.root.get("thinker_config")
        if isinstance(thinker, Mapping) and isinstance(thinker.get("text_config"), Mapping):
            self.text, self.prefix = thinker["text_config"], "thinker_config.text_config."
            return
        for key in _TEXT_CONFIGS:
            part = self.root.get(key)
            if isinstance(part, Mapping) and part:
                self.text, self.prefix = part, f"{key}."
                return

    def raw(self, key: str) -> object:
        """The value of a key of the text config, ``a.b`` reaching into an object; else None."""
        value: object = self.text
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def has(self, *keys: str) -> bool:
        """Whether the text config gives any of the keys a value."""
        return any(self.raw(key) is not None for key in keys)

    def require(self, name: str, *keys: str) -> None:
        """Raises InputError when the text config has none of the keys, not even with null."""
        if not any(key in self.text for key in keys):
            alternatives = "".join(f" (or '{key}')" for key in keys[1:])
            raise self.fail(keys[0], f"is missing{alternatives}; it gives the {name}")

    def fail(self, key: str, problem: str) -> InputError:
        """The error for a key, ready to be raised."""
        return InputError(f"{self.source}: key '{self.prefix}{key}' {problem}")

    def optional(self, name: str, *keys: str, minimum: int = 1) -> int | None:
        """The first of the keys that has a value, as an integer; None when none has.

        Raises:
            InputError: the value is no integer of at least ``minimum``.
        """
        for key in keys:
            value = self.raw(key)
            if value is not None:
                self.keys[name] = f"{self.prefix}{key}"
                return self._checked(key, value, minimum)
        return None

    def integer(self, name: str, *keys: str, minimum: int = 1) -> int:
        """As ``optional``, and the key must be there."""
        found = self.optional(name, *keys, minimum=minimum)
        if found is None:
            alternatives = "".join(f" (or '{key}')" for key in keys[1:])
            raise self.fail(keys[0], f"is missing{alternatives}; it gives the {name}")
        return found

    def _checked(self, key: str, value: object, minimum: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"must be an integer, not {_shown(value)}")
        if not minimum <= value <= _LARGEST:
            raise self.fail(key, f"must be at least {minimum} and sensible, not {_shown(value)}")
        return value

    def number(self, name: str, key: str) -> float:
        """A required finite positive number."""
        value = self.raw(key)
        if value is None:
            raise self.fail(key, f"is missing; it gives the {name}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, f"must be a number, not {_shown(value)}")
        if not 0 < value <= _LARGEST:
            raise self.fail(key, f"must be positive and sensible, not {_shown(value)}")
        self.keys[name] = f"{self.prefix}{key}"
        return float(value)

    def words(self, key: str, *, top_level: bool = False) -> tuple[str, ...] | None:
        """A list of words, or None when the key is absent.

        Raises:
            InputError: the value is something else.
        """
        value = self.root.get(key) if top_level else self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.fail(key, f"must be a list of strings, not {_shown(value)}")
        return tuple(value)

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers, or None when the key is absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.fail(key, f"must be a list of integers, not {_shown(value)}")
        return tuple(value)

    def dtype(self) -> str:
        """The checkpoint's dtype, or an empty text when the config does not say.

        Raises:
            InputError: the value is no dtype.
        """
        for value, key in self._dtypes():
            name = value.removeprefix("torch.") if isinstance(value, str) else ""
            if name not in ("float32", "float16", "bfloat16"):
                message = (
                    f"{self.source}: key '{key}' must be float32, float16 or bfloat16, "
                    f"not {_shown(value)}"
                )
                raise InputError(message)
            self.keys["dtype"] = key
            return name
        return ""

    def _dtypes(self) -> Iterator[tuple[object, str]]:
        for part, prefix in ((self.root, ""), (self.text, self.prefix)):
            for key in ("dtype", "torch_dtype"):
                if part.get(key) is not None:
                    yield part[key], f"{prefix}{key}"

    def word(self, key: str, choices: tuple[str, ...]) -> str | None:
        """One of the words, or None when the key is absent."""
        value = self.raw(key)
        if value is None:
            return None
        if value not in choices:
            raise self.fail(key, f"must be one of {', '.join(choices)}, not {_shown(value)}")
        self.keys[key] = f"{self.prefix}{key}"
        return str(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
