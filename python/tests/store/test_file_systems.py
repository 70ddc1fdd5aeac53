"""A file system of fsspec or pyarrow that a function holds is kept without credentials, and else refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fsspec
import pyarrow.fs as arrow
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


def arrow_s3() -> Any:
    return arrow.S3FileSystem(access_key="planted", secret_key="planted", region="eu-west-1")


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
        (lambda: arrow_s3(), "a S3FileSystem .* with `access_key`, `secret_key`"),
        (lambda: arrow.S3FileSystem(proxy_options="http://me:planted@host:80", region="eu-west-1"), "`password`"),
        (lambda: arrow.SubTreeFileSystem("bucket", arrow_s3()), "`access_key`, `secret_key`"),
        (lambda: arrow.PyFileSystem(arrow.FSSpecHandler(secret_memory())), "`password`"),
    ],
    ids=[
        *("options", "arguments", "within a dict", "password", "another kind", "within another", "within a mapping"),
        *("pyarrow", "pyarrow's proxy", "within pyarrow's", "fsspec within pyarrow's"),
    ],
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


@pytest.mark.parametrize(
    "make",
    [
        lambda: arrow.LocalFileSystem(),
        lambda: arrow.S3FileSystem(region="eu-west-1"),
        lambda: arrow.SubTreeFileSystem("bucket", arrow.S3FileSystem(anonymous=True, region="eu-west-1")),
    ],
    ids=["local", "environment", "anonymous, within another"],
)
def test_one_of_pyarrow_without_credentials_is_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    files = make()
    data, stores = references.dumps(lambda: files)
    assert stores == []
    assert b"planted" not in data
    assert references.loads(data, references.by_address)() == files
