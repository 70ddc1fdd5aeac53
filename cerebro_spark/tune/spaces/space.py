"""Spaces of configurations: dicts with hyperparameters, conditional by nesting. A wrong one is always refused.

A *point* has the path of every hyperparameter that applies, with its value as a number; `params` are what a user's
function gets for it. PURE: randomness comes in as a generator.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.spaces.dimensions import Choice, Dimension, Value

_MOST_SHOWN = 8

Point = dict[str, Value]
Draw = Callable[[str, Dimension], Value]
Leaf = Callable[[str, Dimension], Any]
Branch = Callable[[str, list[Any]], Any]


class Space:
    """A space that has been checked.

    Args:
        space: A dict from names to constants, hyperparameters of `hp`, and dicts and lists of them.

    Raises:
        ConfigurationError: Something in the space is wrong; the message has its path.

    >>> from cerebro_spark.tune import hp
    >>> space = Space({"lr": hp.choice([0.1, 0.01]), "net": hp.choice(["mlp", {"name": "cnn", "k": hp.randint(3, 6)}])})
    >>> space.size
    8
    >>> space.params(space.numbered(1))
    {'lr': 0.1, 'net': {'name': 'cnn', 'k': 3}}
    >>> list(space.dimensions)
    ['lr', 'net', 'net[1].k']
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        if not isinstance(space, Mapping):
            raise ConfigurationError(
                f"the space is a {type(space).__name__}, but must be a dict from names to values and hyperparameters"
            )
        parser = _SpaceParser()
        self._root = parser.read_names(space, "", ())
        self.dimensions: dict[str, Dimension] = parser.dimensions

    @property
    def size(self) -> int:
        """How many configurations there are. Raises ConfigurationError if they cannot be counted."""
        for path, dimension in self.dimensions.items():
            if dimension.levels() is None:
                raise ConfigurationError(
                    f"`{path}` is {dimension}, which has infinitely many values: for a grid list them with"
                    " hp.choice([...]), or step through them with hp.quniform(low, high, q)"
                )
        return self._root.size()

    def numbered(self, number: int) -> Point:
        """Return a point of the grid. The last name changes fastest; each option has its own sub-grid.

        Args:
            number: The number of the point, from 0 up to `size`, not included.

        Returns:
            The point.
        """
        return self._root.number(number)

    def sample(self, rng: np.random.Generator) -> Point:
        """Draw a point at random, each hyperparameter from its own distribution.

        Args:
            rng: The source of random numbers.

        Returns:
            The point.
        """
        return self._root.fill(lambda path, dimension: dimension.sample(rng))

    def fitted(self, values: Mapping[str, float]) -> Point:
        """Return the allowed point that is nearest to given values.

        Args:
            values: A number for each path that may apply.

        Returns:
            The point.
        """
        return self._root.fill(lambda path, dimension: dimension.snap(values[path]))

    def params(self, point: Mapping[str, Value]) -> dict[str, Any]:
        """Return what a user's function gets for a point.

        Args:
            point: A point of this space.

        Returns:
            Plain values by name; they are copies, which the function may change.
        """
        return self._root.params(point)

    def ends(self, name: str) -> list[Any]:
        """Return the smallest and largest values of a name, option by option; nothing if there is no such name.

        Args:
            name: A name at the top of the space, such as "batch_size".

        Returns:
            The values. If they need not be whole, one of them is not.

        >>> from cerebro_spark.tune import hp
        >>> Space({"batch_size": hp.choice([32, hp.randint(64, 129)])}).ends("batch_size")
        [32, 64, 128]
        """
        part = self._root.parts.get(name)
        return [] if part is None else part.ends()

    def translated(self, leaf: Leaf, branch: Branch) -> Any:
        """Translate the space for another library.

        Args:
            leaf: Called with the path and the hyperparameter of each leaf; returns the other library's object.
            branch: Called with the path of a choice and its translated options; returns the other library's object.

        Returns:
            The same structure as objects of the other library; constants are 0.
        """
        return self._root.translated(leaf, branch)


class _Node(Protocol):
    """A part of a space; each method does for the part what that of Space does for the whole."""

    def size(self) -> int: ...
    def number(self, number: int) -> Point: ...
    def fill(self, draw: Draw) -> Point: ...
    def params(self, point: Mapping[str, Value]) -> Any: ...
    def ends(self) -> list[Any]: ...
    def translated(self, leaf: Leaf, branch: Branch) -> Any: ...


class _Constant:
    def __init__(self, value: Any) -> None:
        self._value = value

    def size(self) -> int:
        return 1

    def number(self, number: int) -> Point:
        return {}

    def fill(self, draw: Draw) -> Point:
        return {}

    def params(self, point: Mapping[str, Value]) -> Any:
        return copy.deepcopy(self._value)

    def ends(self) -> list[Any]:
        return [self._value]

    def translated(self, leaf: Leaf, branch: Branch) -> Any:
        return 0


class _Leaf:
    def __init__(self, path: str, dimension: Dimension) -> None:
        self._path, self._dimension = path, dimension

    def size(self) -> int:
        return self._dimension.levels() or 1

    def number(self, number: int) -> Point:
        return {self._path: self._dimension.level(number)}

    def fill(self, draw: Draw) -> Point:
        return {self._path: draw(self._path, self._dimension)}

    def params(self, point: Mapping[str, Value]) -> Any:
        return point[self._path]

    def ends(self) -> list[Any]:
        levels = self._dimension.levels()
        if levels is None:
            # Half a step beside the smallest value: if any number is allowed, it is hardly ever whole.
            return [self._dimension.snap(float(self._dimension.snap(0.0)) + 0.5)]
        second = [1] if levels > 1 and isinstance(self._dimension.level(0), float) else []
        return list(dict.fromkeys(self._dimension.level(number) for number in (0, *second, levels - 1)))

    def translated(self, leaf: Leaf, branch: Branch) -> Any:
        return leaf(self._path, self._dimension)


class _Branch:
    def __init__(self, path: str, choice: Choice, options: list[_Node]) -> None:
        self._path, self._choice, self._options = path, choice, options

    def size(self) -> int:
        return sum(option.size() for option in self._options)

    def number(self, number: int) -> Point:
        for index, option in enumerate(self._options):
            if number < option.size():
                return {self._path: index, **option.number(number)}
            number -= option.size()
        raise IndexError(number)

    def fill(self, draw: Draw) -> Point:
        index = int(draw(self._path, self._choice))
        return {self._path: index, **self._options[index].fill(draw)}

    def params(self, point: Mapping[str, Value]) -> Any:
        return self._options[int(point[self._path])].params(point)

    def ends(self) -> list[Any]:
        return [end for option in self._options for end in option.ends()]

    def translated(self, leaf: Leaf, branch: Branch) -> Any:
        return branch(self._path, [option.translated(leaf, branch) for option in self._options])


class _Group:
    """A list or tuple; `kind` makes one from its parts."""

    def __init__(self, parts: list[_Node], kind: type[Any]) -> None:
        self._parts, self._kind = parts, kind

    def size(self) -> int:
        return math.prod(part.size() for part in self._parts)

    def number(self, number: int) -> Point:
        point: Point = {}
        for part in reversed(self._parts):
            number, own = divmod(number, part.size())
            point |= part.number(own)
        if number:
            raise IndexError(number)
        return point

    def fill(self, draw: Draw) -> Point:
        return {path: value for part in self._parts for path, value in part.fill(draw).items()}

    def params(self, point: Mapping[str, Value]) -> Any:
        return self._kind(part.params(point) for part in self._parts)

    def ends(self) -> list[Any]:
        return [self._kind(part.ends()[0] for part in self._parts)]

    def translated(self, leaf: Leaf, branch: Branch) -> Any:
        return [part.translated(leaf, branch) for part in self._parts]


class _Names(_Group):
    """A dict."""

    def __init__(self, parts: dict[str, _Node]) -> None:
        super().__init__(list(parts.values()), dict)
        self.parts = parts

    def params(self, point: Mapping[str, Value]) -> dict[str, Any]:
        return {name: part.params(point) for name, part in self.parts.items()}

    def ends(self) -> list[Any]:
        return [{name: part.ends()[0] for name, part in self.parts.items()}]


class _SpaceParser:
    """Turns what the user wrote into nodes, and refuses what is wrong."""

    def __init__(self) -> None:
        self.dimensions: dict[str, Dimension] = {}

    def read(self, value: Any, path: str, names: tuple[str, ...]) -> _Node:
        if isinstance(value, Choice):
            self._register(path, value)
            return _Branch(path, value, [self.read(o, f"{path}[{i}]", names) for i, o in enumerate(value.options)])
        if isinstance(value, Dimension):
            self._register(path, value)
            return _Leaf(path, value)
        if isinstance(value, Mapping):
            return self.read_names(value, path, names)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if type(value) in (list, tuple):
            return _Group([self.read(v, f"{path}[{i}]", names) for i, v in enumerate(value)], type(value))
        return _Constant(_plain(value, path))

    def read_names(self, value: Mapping[Any, Any], path: str, names: tuple[str, ...]) -> _Names:
        parts: dict[str, _Node] = {}
        for name, part in value.items():
            if not isinstance(name, str) or not name or name.startswith("$"):
                where = f"`{path}`" if path else "the space"
                raise ConfigurationError(
                    f"{where} has the name {name!r}, but names are strings, not empty, that do not start with '$'"
                )
            own = f"{path}.{name}" if path else name
            if name in names:
                raise ConfigurationError(
                    f"`{own}` uses the name {name!r} a second time on its path: give one of the two another name"
                )
            if "[" not in path:
                _refuse_options(part, own)
            parts[name] = self.read(part, own, (*names, name))
        return _Names(parts)

    def _register(self, path: str, dimension: Dimension) -> None:
        problem = dimension.problem()
        if problem is not None:
            raise ConfigurationError(f"`{path}` is {dimension}, but {problem}")
        if path in self.dimensions:
            raise ConfigurationError(
                f"two hyperparameters have the path `{path}`: use names without dots and brackets, so that paths differ"
            )
        self.dimensions[path] = dimension


def _refuse_options(value: Any, path: str) -> None:
    """Raise ConfigurationError for a plain list under a name: many users mean it as options to choose from.

    A list with a hyperparameter in it is clear, and so is one that is an option of a choice, or is inside of one.
    """
    options = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(options, list | tuple | range | set | frozenset) or not options or _has_dimension(options):
        return
    listed = sorted(options, key=repr) if isinstance(options, set | frozenset) else list(options)
    shown = repr(listed) if len(listed) <= _MOST_SHOWN else f"[{', '.join(map(repr, listed[:_MOST_SHOWN]))}, ...]"
    raise ConfigurationError(
        f"`{path}` is {shown}, a {type(value).__name__}: did you mean hp.choice({shown})? If every trial is to get"
        f" this list, write it as the only option: hp.choice([{shown}])"
    )


def _has_dimension(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_dimension, value.values()))
    return isinstance(value, Dimension) or (isinstance(value, list | tuple) and any(map(_has_dimension, value)))


def _plain(value: Any, path: str) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value != value:
        raise ConfigurationError(f"`{path}` is {value}, but params are compared when a run is resumed: use None")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__module__.startswith("hyperopt."):
        raise ConfigurationError(
            f"`{path}` is an expression of hyperopt's own hp: write it with cs.hp, as in cs.hp.uniform(0.1, 1), or"
            " give the space to CerebroTrials and hyperopt's fmin"
        )
    raise ConfigurationError(
        f"`{path}` is a {type(value).__name__}, but params go into the log of the run: use numbers, strings, booleans,"
        " None, and lists or dicts of them, and let `model_fn` turn a name into the thing it stands for"
    )
