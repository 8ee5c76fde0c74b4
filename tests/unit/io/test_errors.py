from __future__ import annotations

import pickle

import pytest

from strideweave.io import ChangedFileError, MissingFileError, StorageError


@pytest.mark.parametrize("kind", [StorageError, ChangedFileError, MissingFileError])
def test_error_pickled_keeps_its_facts(kind: type[StorageError]) -> None:
    error = kind("cannot read it", path="f", offset_nbytes=3, length_nbytes=4, errno=5)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "cannot read it"
    assert (again.path, again.offset_nbytes, again.length_nbytes, again.errno) == ("f", 3, 4, 5)


def test_error_classes_are_builtin_ones_too() -> None:
    assert issubclass(StorageError, OSError)
    assert issubclass(ChangedFileError, RuntimeError)
    assert issubclass(MissingFileError, FileNotFoundError)
