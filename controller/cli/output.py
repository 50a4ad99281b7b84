"""Where a command writes, checked before it begins: an hour's run should not end with nowhere to put its results.

Types for argparse, which names the option before what these say, and ends with exit status 2. Nothing is created: where
a new file would be made, one without a name is made and dropped, since some file systems (/proc) refuse what their
permission bits allow.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentTypeError
from pathlib import Path


def output_folder(text: str) -> Path:
    """A folder that is there or can be made. ArgumentTypeError if it is not."""
    path = Path(text)
    _require_writable_folder(path, text)
    return path


def output_file(text: str) -> Path:
    """A file that can be written, anew or over the one that is there. ArgumentTypeError if it can't."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder: expected a file's name")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ArgumentTypeError(f"{text} may not be written")
    if not path.exists():
        _require_writable_folder(path.parent, text)
    return path


def _require_writable_folder(folder: Path, text: str) -> None:
    """`folder`, or what is there of it."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror}") from error
    if not there.is_dir():
        raise ArgumentTypeError(f"{text}: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{text}: {there} may not be written to")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {there} can't be written to: {error.strerror}") from error
