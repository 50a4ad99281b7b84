"""The metadata of the package that depend on where its repository is published: links of the README, project URLs.

A hook of the build (pyproject.toml). `CAMERLENGO_URL=https://HOST/OWNER/camerlengo pip wheel .` makes links and images
of the README absolute, at the tag of the version, and adds the URLs. Without the variable relative links become plain
text, since they would lead nowhere outside of the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "CAMERLENGO_URL"
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?![a-z]+:|#)(?P<path>[^)\s]+)\)")


class PackageMetadata(MetadataHookInterface):  # type: ignore[misc]
    """Sets `readme` and `urls`."""

    PLUGIN_NAME = "package-metadata"

    def update(self, metadata: dict[str, Any]) -> None:
        url = repository_url(os.environ.get(VARIABLE, ""))
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, url, metadata["version"])}
        metadata["urls"] = urls(url, metadata["version"])


def repository_url(value: str) -> str:
    """Return the address without a slash at its end, "" for none. Raises ValueError for what is no address."""
    if value and not re.fullmatch(r"https://[^\s/]+/\S+", value):
        raise ValueError(f"{VARIABLE}={value}: expected the address of a repository, https://HOST/OWNER/NAME")
    return value.rstrip("/")


def readme(text: str, url: str, version: str) -> str:
    """Return the README with links that work anywhere."""

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match["image"] else "blob"
        if url:
            return f"{match['image']}[{match['text']}]({url}/{kind}/v{version}/{match['path']})"
        return "" if match["image"] else match["text"]

    return _LINK.sub(absolute, text)


def urls(url: str, version: str) -> dict[str, str]:
    """Return the project's URLs by the names that package indexes know."""
    if not url:
        return {}
    return {
        "Source": url,
        "Documentation": f"{url}/tree/v{version}/docs",
        "Changelog": f"{url}/blob/v{version}/docs/changelog.md",
        "Issues": f"{url}/issues",
    }
