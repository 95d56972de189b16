"""A folder that is no longer what was sealed: every refusal says how to have it whole again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from draftsmith.store.errors import StoreInputError
from draftsmith.store.sealed import MANIFEST, seal, unseal


def spoil_manifest(folder: Path, old: str, new: str) -> None:
    manifest = folder / MANIFEST
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / MANIFEST).unlink(), "has no manifest.json"),
        (lambda f: (f / MANIFEST).write_text("{"), "is not valid JSON"),
        (lambda f: (f / MANIFEST).write_text("[]"), "is no manifest of a bundle"),
        (lambda f: spoil_manifest(f, "for a test", "for another"), "was changed after"),
        (lambda f: (f / "inner").mkdir(), "'inner' is a link, a folder or a device"),
        (lambda f: (f / "more.json").write_text("{}"), "more.json is not listed"),
        (lambda f: (f / "a.json").unlink(), "a.json is missing"),
        (lambda f: (f / "a.json").write_text("[]"), "is not what was written"),
    ],
)
def test_what_was_changed_is_to_be_exported_again(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "sealed"
    seal(folder, {"a.json": b"{}\n"}, {"about": "for a test"})
    assert unseal(folder).files == {"a.json": b"{}\n"}
    spoil(folder)
    with pytest.raises(StoreInputError) as caught:
        unseal(folder)
    assert message in str(caught.value) and str(folder) in str(caught.value)
    assert "export the bundle again" in str(caught.value)
