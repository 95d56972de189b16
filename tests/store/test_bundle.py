"""Bundles: what was written is read back equal, anything else is refused with its reason."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftsmith.store.bundle import Bundle, BundleParts, read_bundle, write_bundle
from draftsmith.store.canonical import fingerprint
from draftsmith.store.errors import StoreEnvironmentError, StoreInputError
from draftsmith.store.exports.native import export_native
from draftsmith.store.sealed import MANIFEST, render_json

PARTS = BundleParts(
    deployment={"target": "tiny", "temperature": 0.1 + 0.2},
    config={"drafter": "ngram", "block_size": 4},
    evidence={"verdict": "winner", "ratio": 1.25, "interval": [1.1, 1.4]},
    heldout={"prompts": ["ab" * 32]},
    draft_vocab=(3, 7, 8, 20),
    report="# Report\n\nfaster \u00d7 1.25\n",
    outputs=({"request_id": "a", "prompt_ids": [1, 2], "token_ids": [5, 2], "text": "x\u2028y"},),
    extra={"vllm.json": b'{"method": "ngram"}', "head.safetensors": bytes(range(256))},
)
NAMES = {
    "manifest.json",
    "deployment.json",
    "config.json",
    "evidence.json",
    "heldout.json",
    "draft_vocab.json",
    "report.md",
    "outputs.jsonl",
    "vllm.json",
    "head.safetensors",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("out") / "bundle"
    write_bundle(place, PARTS, clock=lambda: 12.5)
    return place


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A bundle of this test's own."""
    return shutil.copytree(original, tmp_path / "out" / "bundle")


def reseal(folder: Path, edit: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    """Change the manifest as somebody would who knows how it is made."""
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["self"]
    edit(manifest)
    manifest["self"] = hashlib.sha256(render_json(manifest)).hexdigest()
    (folder / MANIFEST).write_bytes(render_json(manifest))


def test_a_bundle_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = write_bundle(tmp_path / "b", PARTS, clock=lambda: 12.5)
    bundle = read_bundle(tmp_path / "b")
    assert bundle.parts == PARTS
    assert bundle.record == record
    assert record.deployment_fingerprint == fingerprint(PARTS.deployment)
    assert record.created_at == 12.5 and record.path == str(tmp_path / "b")
    assert record.checksum == hashlib.sha256((tmp_path / "b" / MANIFEST).read_bytes()).hexdigest()
    assert {"python", "draftsmith", "sqlalchemy"} <= bundle.versions.keys()
    assert {path.name for path in (tmp_path / "b").iterdir()} == NAMES
    assert [path.name for path in tmp_path.iterdir()] == ["b"], "no temporary folder stays"


def test_a_smallest_bundle(tmp_path: Path) -> None:
    parts = BundleParts(deployment={}, config={}, evidence={})
    write_bundle(tmp_path / "b", parts)
    assert read_bundle(tmp_path / "b").parts == parts


def test_a_taken_folder_is_refused_and_a_bundle_can_be_replaced(folder: Path) -> None:
    with pytest.raises(StoreInputError, match="exists already"):
        write_bundle(folder, PARTS)
    other = BundleParts(deployment={}, config={}, evidence={"new": True})
    write_bundle(folder, other, replace=True)
    assert read_bundle(folder).parts == other
    assert [path.name for path in folder.parent.iterdir()] == ["bundle"]


def test_replacing_never_removes_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "only-copy.md").write_text("x")
    with pytest.raises(StoreInputError, match="is no bundle"):
        write_bundle(tmp_path / "thesis", PARTS, replace=True)
    assert (tmp_path / "thesis" / "only-copy.md").exists()


def test_leftovers_of_a_killed_writer_are_swept(folder: Path) -> None:
    gone = folder.parent / ".next.999999999.tmp"
    gone.mkdir()
    live = folder.parent / f".next.{os.getppid()}.tmp"
    live.mkdir()
    write_bundle(folder.parent / "next", PARTS)
    assert not gone.exists() and live.exists()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreEnvironmentError, match="cannot write .*Fix"):
        write_bundle(tmp_path / "file" / "b", PARTS)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (BundleParts(deployment={}, config={}, evidence={"x": float("nan")}), r"\$\.x is nan"),
        (BundleParts(deployment={}, config={}, evidence={}, extra={"run.py": b""}), "run.py"),
        (BundleParts(deployment={}, config={}, evidence={}, extra={"x.pt": b""}), "x.pt"),
        (BundleParts(deployment={}, config={}, evidence={}, extra={"../x.md": b""}), "../x.md"),
        (BundleParts(deployment={}, config={}, evidence={}, extra={MANIFEST: b""}), MANIFEST),
        (BundleParts(deployment={}, config={}, evidence={}, extra={"config.json": b""}), "rename"),
    ],
)
def test_what_may_not_be_in_a_bundle_is_not_written(
    tmp_path: Path, parts: BundleParts, message: str
) -> None:
    with pytest.raises(StoreInputError, match=message):
        write_bundle(tmp_path / "b", parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_changed_cut_missing_or_linked_file_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (
        whole[:middle],
        whole + b" ",
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        b"",
    ):
        path.write_bytes(content)
        with pytest.raises(StoreInputError, match=name):
            read_bundle(folder)
    path.unlink()
    with pytest.raises(StoreInputError, match=name):
        read_bundle(folder)
    outside = folder.parent / "outside"
    outside.write_bytes(whole)
    path.symlink_to(outside)
    with pytest.raises(StoreInputError, match="is a link"):
        read_bundle(folder)


def test_extra_files_and_folders_are_refused(folder: Path) -> None:
    (folder / "payload.json").write_text("{}")
    with pytest.raises(StoreInputError, match="payload.json is not listed"):
        read_bundle(folder)
    (folder / "payload.json").unlink()
    (folder / "sub").mkdir()
    with pytest.raises(StoreInputError, match="'sub' is a link, a folder or a device"):
        read_bundle(folder)


def test_a_pipe_in_the_folder_is_refused_without_waiting(folder: Path) -> None:
    (folder / "report.md").unlink()
    os.mkfifo(folder / "report.md")
    with pytest.raises(StoreInputError, match="plain files only"):
        read_bundle(folder)


def test_a_newer_schema_is_refused_naming_both(folder: Path) -> None:
    reseal(folder, lambda manifest: manifest.update(schema=2))
    with pytest.raises(StoreInputError, match="schema 2, this draftsmith reads up to 1; upgrade"):
        read_bundle(folder)


@pytest.mark.parametrize(
    "name", ["../outside.json", "/etc/passwd", "a/b.json", ".json", "x.py", ""]
)
def test_a_manifest_that_points_elsewhere_is_refused(folder: Path, name: str) -> None:
    entry = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    reseal(folder, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(StoreInputError, match="not allowed"):
        read_bundle(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest.update(files=[]),
        lambda manifest: manifest.update(about=None),
        lambda manifest: manifest["files"].update({"config.json": 3}),
        lambda manifest: manifest["files"]["config.json"].update(bytes=-2),
        lambda manifest: manifest["files"]["config.json"].update(sha256=None),
        lambda manifest: manifest["about"].update(kind="cake"),
        lambda manifest: manifest["about"].update(deployment_fingerprint="0" * 64),
        lambda manifest: manifest["about"].pop("versions"),
        lambda manifest: manifest["about"].update(created_at="today"),
        lambda manifest: manifest.update(schema=True),
        lambda manifest: manifest.update(schema=0),
    ],
)
def test_a_consistent_but_wrong_manifest_is_refused(
    folder: Path,
    edit: Callable[[dict], None],  # type: ignore[type-arg]
) -> None:
    reseal(folder, edit)
    with pytest.raises(StoreInputError):
        read_bundle(folder)


@pytest.mark.parametrize("content", [b"[]", b"\xff", b"{NaN}", b"[" * 100_000, b"1" * 5000])
@pytest.mark.parametrize("name", ["config.json", "draft_vocab.json", "outputs.jsonl"])
def test_a_resealed_file_with_wrong_contents_is_refused(
    folder: Path, name: str, content: bytes
) -> None:
    if (name, content) == ("draft_vocab.json", b"[]"):
        content = b"[-1]"
    (folder / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    reseal(folder, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(StoreInputError, match=name.partition(".")[0]):
        read_bundle(folder)


def test_no_folder_and_no_bundle_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StoreInputError, match="no such folder"):
        read_bundle(tmp_path / "absent")
    with pytest.raises(StoreInputError, match="no manifest.json"):
        read_bundle(tmp_path)


def test_native_export_is_the_same_bundle(folder: Path, tmp_path: Path) -> None:
    record = export_native(folder, tmp_path / "elsewhere")
    original, copy = read_bundle(folder), read_bundle(tmp_path / "elsewhere")
    assert copy.parts == original.parts and copy.record == record
    assert record.checksum == original.record.checksum
    (folder / "config.json").write_text("{}")
    with pytest.raises(StoreInputError, match="config.json"):
        export_native(folder, tmp_path / "third")
    assert not (tmp_path / "third").exists()


@st.composite
def mutated(draw: st.DrawFn, pristine: dict[str, bytes]) -> dict[str, bytes]:
    """A bundle's files after one to three edits of bytes, names or presence."""
    files = dict(pristine)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(files)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "swap", "rename", "drop"]))
        content = files[name]
        at = draw(st.integers(0, max(0, len(content) - 1)))
        if kind == "flip" and content:
            files[name] = content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
        elif kind == "cut":
            files[name] = content[:at]
        elif kind == "insert":
            files[name] = content[:at] + draw(st.binary(max_size=8)) + content[at:]
        elif kind == "swap":
            other = draw(st.sampled_from(sorted(files)))
            files[name], files[other] = files[other], files[name]
        elif kind == "rename" and len(files) > 1:
            files[draw(st.sampled_from(["x.json", "x.py", "CONFIG.JSON"]))] = files.pop(name)
        elif kind == "drop" and len(files) > 1:
            files.pop(name)
    return files


def read_or_reason(files: dict[str, bytes]) -> Bundle | str:
    place = Path(tempfile.mkdtemp())
    try:
        for name, content in files.items():
            (place / name).write_bytes(content)
        return read_bundle(place)
    except StoreInputError as error:
        return str(error)
    finally:
        shutil.rmtree(place)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_bundles_are_equal_or_refused(original: Path, data: st.DataObject) -> None:
    pristine = {path.name: path.read_bytes() for path in original.iterdir()}
    files = data.draw(mutated(pristine))
    answer = read_or_reason(files)
    if files == pristine:
        assert isinstance(answer, Bundle) and answer.parts == PARTS
    else:
        assert isinstance(answer, str) and answer


def test_a_bundle_is_not_written_into_another(folder: Path) -> None:
    """A folder inside would make the outer bundle unreadable."""
    with pytest.raises(StoreInputError, match="is inside the bundle"):
        write_bundle(folder / "deeper" / "copy", PARTS)
    with pytest.raises(StoreInputError, match="is inside the bundle"):
        export_native(folder, folder / "copy")
    assert read_bundle(folder).parts == PARTS


def test_a_folder_of_other_things_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(StoreInputError, match="is no bundle"):
        read_bundle(tmp_path)
