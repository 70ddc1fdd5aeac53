"""A file system of fsspec that a function holds is kept if it has no credentials, and else refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fsspec
import pytest
import s3fs
from fsspec.implementations.dirfs import DirFileSystem

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.recipe import check_functions
from cerebro_spark.store import references
from cerebro_spark.trainer.base import Hooks

Make = Callable[[], Any]


def secret_memory() -> Any:
    return fsspec.filesystem("memory", password="planted")


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: s3fs.S3FileSystem(key="planted", secret="planted"), "a S3FileSystem .* with `key`, `secret`"),
        (lambda: s3fs.S3FileSystem(False, None, "planted", "planted"), "`key`, `secret`"),
        (lambda: s3fs.S3FileSystem(client_kwargs={"aws_session_token": "planted"}), "`aws_session_token`"),
        (lambda: s3fs.S3FileSystem(username="me", password="planted"), "`password`"),
        (secret_memory, "a MemoryFileSystem .* with `password`"),
        (lambda: DirFileSystem(path="/", fs=secret_memory()), "`password`"),
        (lambda: secret_memory().get_mapper("/folder"), "`password`"),
    ],
    ids=["options", "arguments", "within a dict", "password", "another kind", "within another", "within a mapping"],
)
def test_one_with_credentials_is_refused(make: Make, options: str) -> None:
    files = make()

    def model_fn(params: Any) -> Any:
        return files

    with pytest.raises(
        ConfigurationError, match=f"{options}, which would be kept.*open it inside the function"
    ) as error:
        check_functions(Hooks(model_fn))
    assert "planted" not in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fsspec.filesystem("memory"),
        lambda: fsspec.filesystem("file"),
        lambda: s3fs.S3FileSystem(),
        lambda: s3fs.S3FileSystem(anon=True),
        lambda: s3fs.S3FileSystem(key=None, secret="", profile="mine"),
        lambda: s3fs.S3FileSystem(endpoint_url="http://host", config_kwargs={"signature_version": "s3v4"}),
        lambda: s3fs.S3FileSystem(s3_additional_kwargs={"SSEKMSKeyId": "arn"}),
        lambda: fsspec.filesystem("memory", token="google_default"),
        lambda: fsspec.filesystem("memory", token="~/account.json"),
        lambda: fsspec.filesystem("memory", key_filename="~/.ssh/id", look_for_keys=True),
        lambda: DirFileSystem(path="/", fs=fsspec.filesystem("memory")),
    ],
    ids=[
        *("memory", "local", "environment", "anonymous", "profile", "signature", "key id"),
        *("a way to log in", "an account file", "a key file", "within another"),
    ],
)
def test_one_without_credentials_is_kept(make: Make) -> None:
    files = make()
    data, stores = references.dumps(lambda: files)
    again = references.loads(data, references.by_address)()
    assert stores == []
    assert (type(again), again.storage_options) == (type(files), files.storage_options)
