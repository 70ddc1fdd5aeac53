"""The cache against other users of the machine: only a folder of one's own is used, and what others made is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_rows import numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.loading.cache_root import DISK_VARIABLE, MEMORY_VARIABLE, disk_folder, shared_memory_folder
from cerebro_spark.data.loading.private_folder import PrivateFolder, open_private
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import UntrustedCache
from cerebro_spark.store.local import LocalStore

STRANGER = 12345
ROWS = 8
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files in another user's name")
ROOTS = ("folder", "memory_folder")


@pytest.fixture
def dataset(store: LocalStore) -> Dataset:
    return prepare(numbered(ROWS, 2), store=store, features="x", label="y", partitions=1)


def refused(dataset: Dataset, roots: dict[str, Any], said: str) -> None:
    """Loading is refused with the folder, what is wrong and the way out; and nothing was written there."""
    with Cache(**roots) as cache, pytest.raises(UntrustedCache, match=said) as error:
        cache.load(dataset, dataset.train[0])
    assert "Remove it" in str(error.value)
    assert "CEREBRO_SPARK_CACHE" in str(error.value)
    assert not [path for root in roots.values() for path in Path(root).glob("**/*.npy")]


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777, 0o1777])
@pytest.mark.parametrize("root", ROOTS)
def test_a_folder_that_another_user_made_first_is_refused(
    dataset: Dataset, roots: dict[str, Any], root: str, mode: int
) -> None:
    roots[root].mkdir()
    os.chmod(roots[root], mode)
    os.chown(roots[root], STRANGER, STRANGER)
    refused(dataset, roots, rf"{roots[root]} belongs to user {STRANGER}")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701, 0o1777])
@pytest.mark.parametrize("root", ROOTS)
def test_a_folder_that_lets_others_in_is_refused(dataset: Dataset, roots: dict[str, Any], root: str, mode: int) -> None:
    roots[root].mkdir()
    os.chmod(roots[root], mode)
    refused(dataset, roots, f"{roots[root]} has the mode {mode:04o}")


@pytest.mark.parametrize("target", ["private", "missing"])
@pytest.mark.parametrize("root", ROOTS)
def test_a_link_is_refused_wherever_it_leads(
    dataset: Dataset, roots: dict[str, Any], root: str, target: str, tmp_path: Path
) -> None:
    if target == "private":
        (tmp_path / target).mkdir(mode=0o700)
    roots[root].symlink_to(tmp_path / target)
    refused(dataset, roots, f"{roots[root]} is a link")
    assert not list((tmp_path / target).glob("*"))


def test_a_file_in_the_way_is_refused(dataset: Dataset, roots: dict[str, Any]) -> None:
    roots["folder"].write_bytes(b"")
    refused(dataset, roots, "is no folder")


def test_what_is_made_is_for_this_user_alone(dataset: Dataset, roots: dict[str, Any]) -> None:
    """Every level, also those above the cache, and whatever the umask says."""
    before = os.umask(0)
    try:
        nested = {name: path / "a" / "b" for name, path in roots.items()}
        with Cache(**nested) as cache:
            cache.load(dataset, dataset.train[0])
            made = [path for root in roots.values() for path in (root, *root.rglob("*"))]
            assert any(path.suffix == ".npy" for path in made)
            for path in made:
                assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    finally:
        os.umask(before)


def entry_of(roots: dict[str, Any]) -> Path:
    folder: Path = roots["memory_folder"]
    (entry,) = folder.glob("*/entry.json")
    return entry.parent


@pytest.mark.parametrize("harm", ["owner", "link", "second name", "pipe", "writable", "folder", "folder link"])
@pytest.mark.parametrize("name", ["features.npy", "entry.json"])
def test_a_planted_file_is_refused(
    dataset: Dataset, roots: dict[str, Any], tmp_path: Path, harm: str, name: str
) -> None:
    """As if the folder had been open to others once: its content is not believed because it is private now."""
    if harm in ("owner", "folder") and os.geteuid() != 0:
        pytest.skip("only root can make files in another user's name")
    neighbour = Cache(**roots)
    neighbour.load(dataset, dataset.train[0])
    file = entry_of(roots) / name
    if harm == "owner":
        os.chown(file, STRANGER, STRANGER)
    elif harm == "link":
        file.symlink_to(file.rename(tmp_path / "elsewhere"))
    elif harm == "second name":
        os.link(file, tmp_path / "second")
    elif harm == "pipe":
        file.unlink()
        os.mkfifo(file, 0o600)
    elif harm == "writable":
        os.chmod(file, 0o666)
    elif harm == "folder":
        os.chown(file.parent, STRANGER, STRANGER)
    else:
        file.parent.symlink_to(file.parent.rename(tmp_path / "elsewhere"))
    with Cache(**roots) as cache, pytest.raises(UntrustedCache, match="Remove it"):
        cache.load(dataset, dataset.train[0])
    neighbour.close()


def test_entries_and_locks_of_an_earlier_release_are_used(dataset: Dataset, roots: dict[str, Any]) -> None:
    """They were made readable for all, in a folder that nobody else could enter."""
    neighbour = Cache(**roots)
    neighbour.load(dataset, dataset.train[0])
    for path in roots["memory_folder"].rglob("*"):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)
    with Cache(**roots) as cache:
        assert sorted(cache.load(dataset, dataset.train[0])["label"]) == list(range(ROWS))
    neighbour.close()


ATTACK = """
import os, sys
root = sys.argv[1]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
stolen = changed = 0
for folder, _, files in os.walk(root):
    for name in files:
        try:
            stolen += len(open(os.path.join(folder, name), "rb").read()) > 0
        except OSError:
            pass
        try:
            open(os.path.join(folder, name), "r+b").write(b"x"); changed += 1
        except OSError:
            pass
for act in (lambda: os.rename(root, root + ".old"), lambda: os.mkdir(os.path.join(root, "x"))):
    try:
        act(); changed += 1
    except OSError:
        pass
print(stolen, changed)
"""


@as_root
def test_an_unprivileged_user_can_neither_read_nor_change_it(
    dataset: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a folder that belongs to everybody, as shared memory does, with a name that can be guessed."""
    shared = tmp_path_factory.mktemp("everybody")
    os.chmod(shared, 0o1777)
    for above in shared.parents[:2]:
        os.chmod(above, above.stat().st_mode | 0o011)
    root = shared / "cerebro-spark-0"
    with Cache(tmp_path_factory.mktemp("disk") / "cache", memory_folder=root) as cache:
        cache.load(dataset, dataset.train[0])
        attack = subprocess.run([sys.executable, "-c", ATTACK, str(root)], capture_output=True, text=True, check=False)
        assert (attack.returncode, attack.stdout) == (0, "0 0\n"), attack.stderr
        assert sorted(cache.load(dataset, dataset.train[0])["label"]) == list(range(ROWS))


@as_root
def test_a_folder_put_in_the_place_of_an_open_one_is_not_followed(
    dataset: Dataset, roots: dict[str, Any], tmp_path: Path
) -> None:
    """Where others may rename it (no sticky bit above): what is under way stays in the true one."""
    cache = Cache(**roots, memory_budget=0)
    cache.enter()
    true = roots["folder"].rename(tmp_path / "renamed")
    place = cache._disk.place
    roots["folder"].mkdir(mode=0o777)
    os.chown(roots["folder"], STRANGER, STRANGER)
    (place / "mine").write_bytes(b"")
    assert (true / "mine").exists()
    assert not list(roots["folder"].iterdir())
    with pytest.raises(UntrustedCache, match=f"belongs to user {STRANGER}"):
        cache.load(dataset, dataset.train[0])
    cache.close()


def test_the_environment_names_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_folder().name == shared_memory_folder().name == f"cerebro-spark-{os.geteuid()}"
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path / "d"))
    monkeypatch.setenv(MEMORY_VARIABLE, str(tmp_path / "m"))
    assert (disk_folder(), shared_memory_folder()) == (tmp_path / "d", tmp_path / "m")


def test_a_lock_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    with PrivateFolder(tmp_path / "mine") as folder:
        (tmp_path / "mine" / "root.lock").symlink_to(precious)
        with pytest.raises(UntrustedCache, match=r"mine/root\.lock is a link"):
            open_private(folder.place / "root.lock", "ab")
        with pytest.raises(FileExistsError):
            open_private(folder.place / "root.lock", "xb")
    assert precious.read_bytes() == b"precious"


def test_labels_planted_under_the_right_name_are_never_handed_out(dataset: Dataset, roots: dict[str, Any]) -> None:
    """Whatever the checksums beside them say: those find damage, not enemies."""
    with Cache(**roots) as cache:
        cache.load(dataset, dataset.train[0])
        entry = entry_of(roots)
        content = {path.name: path.read_bytes() for path in entry.iterdir()}
    roots["memory_folder"].mkdir()
    os.chmod(roots["memory_folder"], 0o777)
    (roots["memory_folder"] / entry.name).mkdir()
    for name, data in content.items():
        (roots["memory_folder"] / entry.name / name).write_bytes(data)
    np.save(roots["memory_folder"] / entry.name / "label.npy", np.zeros(ROWS, "int64"))
    with Cache(**roots) as cache, pytest.raises(UntrustedCache, match="mode 0777"):
        cache.load(dataset, dataset.train[0])
