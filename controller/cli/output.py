"""Checks of output paths before a command begins, so that no long run ends without a place to write its results.

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
    """Return the path of a directory that exists or can be created. Raises ArgumentTypeError otherwise."""
    path = Path(text)
    _require_writable_folder(path, text)
    return path


def output_file(text: str) -> Path:
    """Return the path of a file that can be created or overwritten. Raises ArgumentTypeError otherwise."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a directory: expected the name of a file")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: no such directory: {path.parent}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ArgumentTypeError(f"{text} is not writable")
    if not path.exists():
        _require_writable_folder(path.parent, text)
    return path


def _require_writable_folder(folder: Path, text: str) -> None:
    """Require that `folder`, or its nearest existing parent, is a writable directory."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror}") from error
    if not there.is_dir():
        raise ArgumentTypeError(f"{text}: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{text}: {there} is not writable")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {there} is not writable: {error.strerror}") from error
