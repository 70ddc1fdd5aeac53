"""Says what is known against the libraries that are installed, and under which licences they come.

    .venv-audit/bin/python constraints/audit.py .venv/bin/python [--licences FILE]

pip-audit asks a database of known vulnerabilities, which needs a network. What it could not ask about counts as not
audited, not as sound. The exit code is 0 if nothing is known, 1 if something is, 2 if any library was not audited.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Words in the licences that ask more of whoever passes a library on than to name it.
_COPYLEFT = ("GPL", "GNU", "SSPL", "EUPL")


def judge(report: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return what to print of a report of pip-audit, and the exit code.

    >>> judge({"dependencies": [{"name": "six", "version": "1.16", "vulns": []}]})
    (['1 libraries were audited, and nothing is known against them'], 0)
    """
    asked = [each for each in report["dependencies"] if "skip_reason" not in each]
    skipped = [each["name"] for each in report["dependencies"] if "skip_reason" in each]
    lines = [
        f"{each['name']} {each['version']}: {known['id']}, mended in {', '.join(known['fix_versions']) or 'no version'}"
        for each in asked
        for known in each["vulns"]
    ]
    found = bool(lines)
    if asked and not found:
        lines.append(f"{len(asked)} libraries were audited, and nothing is known against them")
    if skipped:
        what = "no library was" if not asked else f"{len(skipped)} libraries were not"
        lines.append(
            f"{what} audited: the database of vulnerabilities cannot be asked about {', '.join(skipped[:5])} ..."
        )
    return lines, 1 if found else 2 if skipped else 0


def list_licences(rows: Sequence[Mapping[str, str]]) -> tuple[str, list[str]]:
    """Return the licences as a table in Markdown, and the libraries whose licence asks for more than to be named.

    >>> table, strict = list_licences([{"Name": "six", "Version": "1.16", "License": "MIT"}])
    >>> strict, table.splitlines()[-1]
    ([], '| six | 1.16 | MIT |')
    """
    lines = ["| library | version | licence |", "|---|---|---|"]
    lines += [f"| {row['Name']} | {row['Version']} | {row['License']} |" for row in rows]
    strict = [f"{row['Name']} ({row['License']})" for row in rows if any(word in row["License"] for word in _COPYLEFT)]
    return "\n".join(lines) + "\n", strict


def main() -> int:
    """Ask both tools about an environment, and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="the Python of the environment")
    parser.add_argument("--licences", type=Path, default=Path("build/licences.md"))
    arguments = parser.parse_args()
    tools = Path(sys.executable).parent
    rows = json.loads(_ask([tools / "pip-licenses", f"--python={arguments.python}", "--format=json"]))
    table, strict = list_licences(rows)
    arguments.licences.parent.mkdir(parents=True, exist_ok=True)
    arguments.licences.write_text(table)
    print(f"the licences of {len(rows)} libraries are in {arguments.licences}")
    if strict:
        print(f"look at those of {', '.join(strict)}")
    where = _ask([arguments.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    audit = [tools / "pip-audit", "--path", where, "--format", "json", "--progress-spinner", "off"]
    lines, code = judge(json.loads(_ask(audit, codes=(0, 1))))
    print("\n".join(lines))
    return code


def _ask(command: Sequence[str | Path], codes: Sequence[int] = (0,)) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode not in codes:
        sys.exit(f"{command[0]} failed with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
