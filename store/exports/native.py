"""Export for draftsmith's own engine: the bundle itself, checked, in another place."""

from __future__ import annotations

from pathlib import Path

from draftsmith.store.bundle import read_bundle
from draftsmith.store.records import BundleRecord
from draftsmith.store.sealed import seal, unseal


def export_native(source: str | Path, folder: str | Path, *, replace: bool = False) -> BundleRecord:
    """Copy the bundle at ``source`` to ``folder``, byte for byte: the checksum stays the same.

    StoreInputError when ``source`` is not whole or ``folder`` is taken (see ``write_bundle``).
    """
    bundle = read_bundle(source)
    sealed = unseal(Path(bundle.record.path))
    place = Path(folder).expanduser().absolute()
    checksum = seal(place, sealed.files, sealed.about, replace=replace)
    return BundleRecord(
        path=str(place),
        checksum=checksum,
        deployment_fingerprint=bundle.record.deployment_fingerprint,
        created_at=bundle.record.created_at,
    )
