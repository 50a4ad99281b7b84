"""The README as package indexes show it, and the project's URLs."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)[^)]*\)")
URL = "https://example.org/owner/camerlengo"


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """docs/package_metadata.py, with its class for the build, which only builds have."""
    interface = types.ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("package_metadata", ROOT / "docs" / "package_metadata.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_links_of_the_readme_lead_into_the_repository(metadata: types.ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(text)
    shown = metadata.readme(text, URL, "1.2.3")
    assert RELATIVE.search(shown) is None
    assert f"({URL}/raw/v1.2.3/docs/images/timeline.svg)" in shown
    for path in re.findall(rf"\({URL}/(?:raw|blob)/v1\.2\.3/([^)#]+)", shown):
        assert (ROOT / path).exists()


def test_without_an_address_there_is_no_dead_link(metadata: types.ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = metadata.readme(text, "", "1.2.3")
    assert RELATIVE.search(shown) is None
    assert "docs/images" not in shown
    assert metadata.readme("![a](b.svg)[c](d.md), [e](https://f.g), [h](#i)", "", "1") == "c, [e](https://f.g), [h](#i)"
    assert metadata.urls("", "1.2.3") == {}


def test_the_urls_lead_to_what_is_there(metadata: types.ModuleType) -> None:
    urls = metadata.urls(metadata.repository_url(URL + "/"), "1.2.3")
    assert sorted(urls) == ["Changelog", "Documentation", "Issues", "Source"]
    assert (ROOT / urls["Changelog"].removeprefix(f"{URL}/blob/v1.2.3/")).is_file()
    with pytest.raises(ValueError, match="CAMERLENGO_URL=nowhere: expected the address of a repository"):
        metadata.repository_url("nowhere")
