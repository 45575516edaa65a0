"""Reading a `config.json` safely, and asking it for one checked field at a time.

Nothing is executed, imported or fetched: the file is JSON text of at most ``MAX_BYTES``.
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 8 * 2**20
MAX_LAYERS = 4096
MAX_SIZE = 2**31 - 1
_MISSING = object()
_repr = reprlib.Repr()
_repr.maxstring, _repr.maxother, _repr.maxlist, _repr.maxdict, _repr.maxlevel = 60, 60, 4, 4, 2


def _short(value: Any) -> str:
    try:
        return _repr.repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or very deep nesting
        return f"a {type(value).__name__} too long to show"


# Files that people hand over by mistake: (keys that give one away, what it is). The first that fits is named.
_NATIVE = (
    ({"weight_map", "metadata"}, "an index of weight shards"),
    ({"producer", "quantization"}, "a quantisation record (hf_quant_config.json)"),
    ({"peft_type"}, "an adapter's config (adapter_config.json)"),
    ({"tokenizer_class", "added_tokens_decoder"}, "a tokenizer's config"),
    ({"_class_name", "_diffusers_version"}, "a diffusers config"),
    ({"dim", "n_layers", "hidden_dim"}, "Mistral's native params.json"),
    ({"dim", "n_layers", "moe_inter_dim"}, "DeepSeek's native inference config"),
    ({"dim", "n_layers", "n_heads"}, "Meta's native params.json"),
    ({"n_layer", "n_head", "n_embd"}, "a GPT-2 style config"),
    ({"d_model", "n_layer", "ssm_cfg"}, "Mamba's native config"),
    ({"num_layers", "ffn_hidden_size", "num_attention_heads"}, "a Megatron or NeMo config"),
    ({"num_hidden_layers", "experts_per_token", "initial_context_length"}, "gpt-oss's native config"),
    ({"max_new_tokens"}, "a generation config"),
)


_MAGIC = (
    (b"GGUF", "a GGUF file"), (b"PK\x03\x04", "a zip or PyTorch archive"), (b"\x1f\x8b", "a gzip file"),
    (b"\x80", "a pickle"),
)  # fmt: skip


def load(config: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The top-level object of a config and a name for messages. A dict passes through (shallowly copied).

    Raises ValueError, one sentence, for a path that is no readable regular file, more than 8 MiB, not UTF-8, not
    JSON, nested too deeply, holding a key twice, not an object, or in a format that is not Hugging Face's.

    >>> load({"model_type": "llama"})
    ({'model_type': 'llama'}, 'config')
    """
    if isinstance(config, Mapping):
        raw, where = dict(config), "config"
        for key in raw:
            if not isinstance(key, str):
                raise ValueError(f"{where}: the key {_short(key)} is not text; allowed: the keys of a config.json")
    elif isinstance(config, str | os.PathLike):
        raw, where = _load_file(config), os.fspath(config)
        where = Path(where.decode(errors="replace") if isinstance(where, bytes) else where).name
    else:
        raise ValueError(f"config is a {type(config).__name__}; allowed: the path of a config.json, or its dict")
    if not raw:
        raise ValueError(f"{where}: the object is empty; allowed: a Hugging Face config.json")
    if "model_type" not in raw and "architectures" not in raw:
        for keys, what in _NATIVE:
            if keys <= raw.keys():
                raise ValueError(f"{where} is {what}, not a Hugging Face config.json (no model_type, no architectures)")
    return raw, where


def _load_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    name = _short(os.fspath(path))
    try:
        mode = os.stat(path)
        if stat.S_ISDIR(mode.st_mode):
            raise ValueError(f"{name} is a directory; allowed: the path of the config.json in it")
        if not stat.S_ISREG(mode.st_mode):
            raise ValueError(f"{name} is not a regular file; allowed: a config.json")
        if mode.st_size > MAX_BYTES:
            raise ValueError(f"{name} has {mode.st_size} bytes; allowed: at most {MAX_BYTES} for a config.json")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(f"{name}: there is no such file; allowed: the path of a config.json") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read ({error.strerror}); allowed: a readable config.json") from None
    except ValueError as error:  # a path that holds NUL or half a surrogate pair, or our own refusal
        if type(error) is ValueError and str(error).startswith(name):
            raise
        raise ValueError(f"{name} is no path of a file; allowed: the path of a config.json") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name} has more than {MAX_BYTES} bytes; allowed: at most that for a config.json")
    for magic, what in _MAGIC:
        if data.startswith(magic):
            raise ValueError(f"{name} is {what}, not a config.json; it was not opened")
    if data[8:9] == b"{" and b"\0" in data[:8]:  # the length of the header goes first, in eight bytes
        raise ValueError(f"{name} is a safetensors file, not a config.json; it was not opened")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 (byte {error.start}); allowed: a config.json in UTF-8") from None
    try:
        raw = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply for a config.json") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise ValueError(f"{name} cannot be read as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{name} holds a {type(raw).__name__}; allowed: a JSON object, as a config.json is")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {_short(key)} is given twice")
            seen.add(key)
    return found


class Keys:
    """One JSON object, asked for one field at a time; it remembers which keys were read.

    ``null`` counts as absent everywhere. A method that is given several names takes the first that is present, and
    refuses when two are present and differ. Every refusal is a ValueError that names the object, the field, what it
    got and what is allowed.
    """

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw, self.where = raw, where
        self.given = {name for name, value in raw.items() if value is not None}
        self.used: set[str] = set()
        self.notes: list[str] = []
        self.filled: dict[str, str] = {}
        self.class_defaults: Mapping[str, Any] = {}
        self.may_be_bare = False
        self.children: dict[str, Keys] = {}

    def fill(self, defaults: Mapping[str, Any], why: str) -> None:
        """Take these values for the fields that are absent, and note each one."""
        for name, value in defaults.items():
            if self.raw.get(name) is None:
                self.raw = {**self.raw, name: value}
                self.note(f"{name} is absent: {value} ({why})")

    def fill_absent(self, defaults: Mapping[str, Any], why: str, *, bare: bool) -> None:
        """Let the class's defaults stand in for what is absent; ``null`` stays null, a field's other name goes first.

        A field that every config spells out (it is read without a default) stays missing, unless ``bare``: the text
        parts of multimodal configs leave out whatever is their class's default. What is used is noted.
        """
        absent = {name: value for name, value in defaults.items() if name not in self.raw}
        self.raw = {**absent, **self.raw}
        self.filled = dict.fromkeys(absent, why)
        self.class_defaults = defaults
        self.may_be_bare = bare

    def default_of(self, name: str) -> Any:
        """What the model's class declares for this field, ``None`` where it declares nothing."""
        return self.class_defaults.get(name)

    def has(self, *names: str) -> bool:
        """Whether any of these is present (and not null)."""
        self.used.update(names)
        return any(self.raw.get(name) is not None for name in names)

    def _get(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        present = [name for name in names if self.raw.get(name) is not None]
        own = [name for name in present if name not in self.filled]
        if not own and default is _MISSING and not self.may_be_bare:
            present = []
        present = own or present[:1]
        self.used.update(names)
        if not present:
            if default is _MISSING:
                raise ValueError(f"{self.where}: {' or '.join(names)} is missing; allowed: a config that gives it")
            return names[0], default
        for other in present[1:]:
            if self.raw[other] != self.raw[present[0]]:
                raise ValueError(
                    f"{self.where}: {present[0]} is {_short(self.raw[present[0]])} but {other} is "
                    f"{_short(self.raw[other])}; allowed: the same value in both"
                )
        value = self.raw[present[0]]
        if present[0] in self.filled and (type(value), value) != (type(default), default):
            self.note(f"{present[0]} is absent: {value} ({self.filled[present[0]]})")
        return present[0], value

    def size(self, *names: str, default: Any = _MISSING, least: int = 1, most: int = MAX_SIZE) -> Any:
        """A whole number between ``least`` and ``most``; the default passes unchecked."""
        name, value = self._get(names, default)
        return value if value is default else self.checked(name, value, least=least, most=most)

    def checked(self, name: str, value: Any, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """``value`` if it is a whole number between the two."""
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{self.where}: {name} is {_short(value)}; allowed: a whole number from {least} to {most}")
        return value

    def number(self, name: str, *, default: float) -> float:
        """A finite number above 0."""
        _, value = self._get((name,), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_SIZE:
            raise ValueError(f"{self.where}: {name} is {_short(value)}; allowed: a finite number above 0")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """true or false."""
        name, value = self._get(names, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {name} is {_short(value)}; allowed: true or false")
        return value

    def text(self, *names: str, default: Any = _MISSING) -> Any:
        """A string."""
        name, value = self._get(names, default)
        if value is not default and not isinstance(value, str):
            raise ValueError(f"{self.where}: {name} is {_short(value)}; allowed: text")
        return value

    def listed(self, name: str, n: int, *, allowed: Iterable[Any], n_extra: int = 0) -> list[Any]:
        """A list of ``n`` entries (or ``n`` + ``n_extra``, the rest cut off), each one of ``allowed``."""
        _, value = self._get((name,), _MISSING)
        if not isinstance(value, list):
            raise ValueError(f"{self.where}: {name} is {_short(value)}; allowed: a list of {n} entries")
        if len(value) not in (n, n + n_extra):
            index = f"index {len(value)} is missing" if len(value) < n else f"index {n} is one too many"
            raise ValueError(f"{self.where}: {name} has {len(value)} entries, num_hidden_layers is {n}: {index}")
        allowed = list(allowed)
        for index, entry in enumerate(value):
            if not any(entry == good and isinstance(entry, type(good)) for good in allowed):
                raise ValueError(
                    f"{self.where}: {name}[{index}] is {_short(entry)}; allowed: {', '.join(map(str, allowed))}"
                )
        return value[:n]

    def sizes(self, name: str, n: int) -> list[int]:
        """A whole number for each of ``n`` layers: a list of them, or one for all."""
        _, value = self._get((name,), _MISSING)
        if not isinstance(value, list):
            return [self.checked(name, value)] * n
        if len(value) != n:
            index = f"index {len(value)} is missing" if len(value) < n else f"index {n} is one too many"
            raise ValueError(f"{self.where}: {name} has {len(value)} entries, num_hidden_layers is {n}: {index}")
        return [self.checked(f"{name}[{index}]", entry) for index, entry in enumerate(value)]

    def members(self, name: str, n: int, *, first: int = 0) -> set[int]:
        """A list of layer numbers counted from ``first``, as a set counted from 0."""
        _, value = self._get((name,), _MISSING)
        if not isinstance(value, list):
            raise ValueError(f"{self.where}: {name} is {_short(value)}; allowed: a list of layer numbers")
        for index, entry in enumerate(value):
            self.checked(f"{name}[{index}]", entry, least=first, most=n - 1 + first)
        return {entry - first for entry in value}

    def sub(self, name: str) -> Keys:
        """The object of that name, as Keys of its own."""
        _, value = self._get((name,), _MISSING)
        if not isinstance(value, dict):
            raise ValueError(f"{self.where}: {name} is {_short(value)}; allowed: an object")
        if name not in self.children:
            self.children[name] = Keys(value, f"{self.where}: {name}")
        return self.children[name]

    def note(self, text: str) -> None:
        """Remember something a reader should see, once."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, text: str) -> ValueError:
        """The error to raise for this object."""
        return ValueError(f"{self.where}: {text}")
