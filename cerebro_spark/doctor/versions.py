"""Which versions fit together: a table of rules. PURE: versions in, diagnoses out.

Each rule was tried, or is a requirement of the library itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from cerebro_spark.doctor.diagnosis import Diagnosis, fix, note, ok

_REQUIREMENT = re.compile(r"([a-z_-]*)(<|>=)?([\d.]*)")
_NEEDED = ("numpy", "pandas", "pyarrow", "safetensors", "cloudpickle", "cryptography", "xxhash", "tqdm")
_FRAMEWORKS = ("keras", "torch")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule on the version of one library.

    Attributes:
        requirement: The library and its version: "pyarrow<15".
        beside: Another library, with or without a version; the rule holds only if it is installed. "" for always.
        why: The reason, for the user.
        remedy: What to do; "" for installing the required version.
    """

    requirement: str
    beside: str = ""
    why: str = ""
    remedy: str = ""


RULES: tuple[Rule, ...] = (
    Rule("numpy>=1.24"),
    Rule("pandas>=2.0"),
    Rule("pyarrow>=14"),
    Rule("safetensors>=0.4"),
    Rule("cloudpickle>=2.2"),
    Rule("cryptography>=42"),
    Rule("xxhash>=3.0"),
    Rule("pyspark>=3.5"),
    Rule("keras>=3.5"),
    Rule("tensorflow>=2.16", beside="keras"),
    Rule("torch>=2.2"),
    Rule("pyarrow<15", beside="petastorm", why="Petastorm cannot write with 15, nor be imported with 16"),
    Rule("numpy<2", beside="petastorm", why="Petastorm is made for NumPy 1"),
    Rule("setuptools<70", beside="petastorm", why="Petastorm asks for it"),
    Rule("torch<2.13", beside="petastorm", why="torch asks for a newer setuptools than Petastorm allows"),
    Rule(
        "pyspark<4",
        beside="petastorm",
        why="Spark 4 asks for a newer pyarrow than Petastorm allows",
        remedy="pip uninstall petastorm, without which the same files are read, or pip install 'pyspark<4'",
    ),
    Rule("pyarrow>=15", beside="pyspark>=4.1", why="Spark asks for it"),
    Rule("pyarrow>=18", beside="pyspark>=4.2", why="Spark asks for it"),
    Rule("setuptools<81", beside="hyperopt", why="hyperopt uses pkg_resources, which is gone from 81 on"),
    Rule("java<18", beside="pyspark<4", why="Spark 3.5 runs on Java 8, 11 and 17", remedy="point JAVA_HOME to Java 17"),
    Rule("java>=17", beside="pyspark>=4", why="Spark 4 runs on Java 17 and later", remedy="point JAVA_HOME to Java 17"),
)


def parse_requirement(requirement: str) -> tuple[str, str, str]:
    """Return the library, the sign and the version of a requirement.

    >>> parse_requirement("pyarrow<15"), parse_requirement("keras")
    (('pyarrow', '<', '15'), ('keras', '', ''))
    """
    found = _REQUIREMENT.fullmatch(requirement)
    assert found is not None, requirement
    return found[1], found[2] or "", found[3]


_NAMED = [parse_requirement(text)[0] for rule in RULES for text in (rule.requirement, rule.beside)]
LIBRARIES = tuple(name for name in dict.fromkeys([*_NAMED, *_NEEDED]) if name not in ("", "java"))


def judge_versions(versions: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yield a diagnosis for every rule that is broken, and for every library that breaks none.

    >>> for found in judge_versions(dict.fromkeys(_NEEDED, "99.0")
    ...                             | {"numpy": "1.26.4", "pyarrow": "16.0", "petastorm": "0.13.1", "torch": "2.8.0"}):
    ...     if found.verdict == "FIX":
    ...         print(found.text)
    pyarrow 16.0 beside petastorm 0.13.1: pip install 'pyarrow<15' (Petastorm cannot write with 15, nor be imported
    with 16)
    """
    for name in _NEEDED:
        if name not in versions:
            yield fix(f"{name} is not installed", f"pip install {name}")
    if not any(name in versions for name in _FRAMEWORKS):
        yield fix(
            "neither Keras nor PyTorch is installed",
            "pip install 'cerebro-spark[keras]' or pip install 'cerebro-spark[torch]'",
        )
    if "pyspark" not in versions:
        yield note("pyspark is not installed: searches run on a LocalBackend only; pip install 'cerebro-spark[spark]'")
    broken = [rule for rule in RULES if _applies(rule.beside, versions) and _breaks(rule.requirement, versions)]
    for rule in broken:
        yield _describe(rule, versions)
    guilty = {parse_requirement(rule.requirement)[0] for rule in broken}
    for name in LIBRARIES:
        if name in versions and name not in guilty:
            yield ok(f"{name} {versions[name]}")


def meets(version: str, sign: str, bound: str) -> bool:
    """Whether a version is below ("<") or at least (">=") a bound. Only numbers count, not what follows them.

    >>> meets("14.0.2", "<", "15"), meets("2.13.0+cpu", ">=", "2.13"), meets("15.0rc1", "<", "15")
    (True, True, False)
    """
    own, other = zip(*zip_longest(_numbers(version), _numbers(bound), fillvalue=0), strict=True)
    return own < other if sign == "<" else own >= other


def _applies(beside: str, versions: Mapping[str, str]) -> bool:
    name, sign, bound = parse_requirement(beside)
    return not name or (name in versions and (not sign or meets(versions[name], sign, bound)))


def _breaks(requirement: str, versions: Mapping[str, str]) -> bool:
    name, sign, bound = parse_requirement(requirement)
    return name in versions and not meets(versions[name], sign, bound)


def _describe(rule: Rule, versions: Mapping[str, str]) -> Diagnosis:
    name, neighbour = parse_requirement(rule.requirement)[0], parse_requirement(rule.beside)[0]
    beside = f" beside {neighbour} {versions[neighbour]}" if neighbour else ""
    why = f" ({rule.why})" if rule.why else ""
    return fix(f"{name} {versions[name]}{beside}", (rule.remedy or f"pip install '{rule.requirement}'") + why)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
