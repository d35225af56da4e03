#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

"""Reads values of a document, and refuses them with their path."""

from collections.abc import Callable
from collections.abc import Iterable
import datetime
import difflib
from typing import Any
from typing import TypeVar

from nova_reaper.cloud import model

T = TypeVar('T')
Read = Callable[[Any, str], T]

_FIRST_YEAR = 1970
_LAST_YEAR = 3000
# Of what a sentence says of a document.
_LONGEST = 300


class BadInput(ValueError):
    """A document that is refused.

    :param path: where the wrong value is, as in "hosts[3].name"
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f'{_shown(path) or "the document"}: '
                         f'{_shown(message)}')
        self.path = path


def _shown(text: str) -> str:
    """In one line of some length, whatever names the document has."""
    line = ''.join(one if one.isprintable() else repr(one)[1:-1]
                   for one in text[:_LONGEST])
    return line + '...' * (len(text) > _LONGEST)


def has_to_be(wanted: str, value: Any) -> str:
    """The sentence about a value that is something else."""
    if value is None or isinstance(value, bool):
        told = {None: 'null', True: 'true', False: 'false'}[value]
    elif isinstance(value, dict | list):
        told = 'an object' if isinstance(value, dict) else 'a list'
    else:
        try:
            told = repr(value)
        except ValueError:
            # Python does not print numbers of thousands of digits.
            told = 'that number'
    return f'has to be {wanted}, not {told[:60]}'


class Object:
    """An object of the document, whose keys are read one by one."""

    def __init__(self, value: Any, path: str) -> None:
        self._value = mapping(value, path)
        self._path = path
        self._known: list[str] = []

    def path(self, key: str) -> str:
        """The path of one of its values."""
        return f'{self._path}.{key}' if self._path else key

    def need(self, key: str, read: Read[T]) -> T:
        """A value that has to be there."""
        if key not in self._value:
            raise BadInput(self.path(key), 'is missing')
        self._known.append(key)
        return read(self._value[key], self.path(key))

    def get(self, key: str, read: Read[T], default: Any) -> T:
        """A value that may be absent; the default is not looked at."""
        self._known.append(key)
        if key not in self._value:
            return default  # type: ignore[no-any-return]
        return read(self._value[key], self.path(key))

    def done(self) -> None:
        """Refuse what was not asked for: it may be a typing error."""
        for key in self._value:
            if key not in self._known:
                near = difflib.get_close_matches(str(key), self._known, 1)
                raise BadInput(self.path(str(key)), 'is not known here' + (
                    f'; is "{near[0]}" meant?' if near else ''))


def unique(named: Iterable[tuple[str, str]],
           seen: dict[str, str]) -> dict[str, str]:
    """Refuse a name that is there twice.

    :param named: pairs of a name and the path of what has it
    :param seen: the paths by name; those that were there before, too
    """
    for text, path in named:
        if text in seen:
            raise BadInput(path, f'"{text}" is that of {seen[text]} already')
        seen[text] = path
    return seen


def mapping(value: Any, path: str) -> dict[Any, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise BadInput(path, has_to_be('an object', value))
    return value


def list_of(read: Read[T]) -> Read[list[T]]:
    """What reads a list of something."""
    def read_list(value: Any, path: str) -> list[T]:
        if not isinstance(value, list):
            raise BadInput(path, has_to_be('a list', value))
        return [read(one, f'{path}[{at}]') for at, one in enumerate(value)]
    return read_list


def dict_of(read: Read[T]) -> Read[dict[str, T]]:
    """What reads an object whose keys are names."""
    def read_dict(value: Any, path: str) -> dict[str, T]:
        return {name(key, f'{path}.{key}'): read(one, f'{path}.{key}')
                for key, one in mapping(value, path).items()}
    return read_dict


def or_null(read: Read[T]) -> Read[T | None]:
    """What reads something that may be null."""
    def read_or_null(value: Any, path: str) -> T | None:
        return None if value is None else read(value, path)
    return read_or_null


def text(value: Any, path: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise BadInput(path, has_to_be('a string', value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(path, has_to_be('text', value)) from None
    return value


def name(value: Any, path: str) -> str:
    """A string that says something."""
    result = text(value, path)
    if not result.strip():
        raise BadInput(path, has_to_be('a string that is not empty', value))
    return result


def flag(value: Any, path: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise BadInput(path, has_to_be('true or false', value))
    return value


def count(least: int = 0, most: int = model.MAX_INT) -> Read[int]:
    """What reads a whole number, which neither true nor 1.0 is."""
    def read_count(value: Any, path: str) -> int:
        if (isinstance(value, bool) or not isinstance(value, int) or
                not least <= value <= most):
            raise BadInput(path, has_to_be(
                f'a whole number from {least} to {most}', value))
        return value
    return read_count


def ratio(value: Any, path: str) -> float:
    """A number that is not negative."""
    if (isinstance(value, bool) or not isinstance(value, int | float) or
            not 0 <= value <= model.MAX_INT):
        raise BadInput(path, has_to_be(f'a number from 0 to {model.MAX_INT}',
                                       value))
    return float(value)


def time(value: Any, path: str) -> datetime.datetime:
    """A time of ISO 8601 with its zone."""
    try:
        result = datetime.datetime.fromisoformat(text(value, path))
        if result.tzinfo is None or not (
                _FIRST_YEAR <= result.year <= _LAST_YEAR):
            raise ValueError
        return result.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise BadInput(path, has_to_be(
            f'a time with its zone, as "2026-11-22T12:00:00Z", of the years '
            f'{_FIRST_YEAR} to {_LAST_YEAR}', value)
        ) from None


def one_of(*choices: str) -> Read[str]:
    """What reads one of some words."""
    def read_one_of(value: Any, path: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise BadInput(path, has_to_be(
                'one of ' + ', '.join(f'"{one}"' for one in choices), value))
        return value
    return read_one_of


def plain_name(value: Any, path: str) -> str:
    """A trait or an aggregate that a host has."""
    result = name(value, path)
    if ',' in result or result.startswith(('!', 'in:')):
        raise BadInput(path, 'has to be a name, without "," and neither "!" '
                       f'nor "in:" before it, not {result!r}')
    return result


def expression(value: Any, path: str) -> str:
    """A trait or an aggregate that is asked for, in Placement's words."""
    result = name(value, path)
    wanted = result.removeprefix('!')
    names = wanted.removeprefix('in:').split(',')
    if (len(names) > 1 and not wanted.startswith('in:')) or not all(
            one.strip() and not one.startswith(('!', 'in:'))
            for one in names):
        raise BadInput(path, 'has to be "NAME" or "in:NAME,NAME", with "!" '
                       f'before it to forbid it, not {result!r}')
    return result
