"""Compiled kernels on disk, shared by processes and sessions.

Each spec has two files: ``KEY.o``, and ``KEY.json``, written last, with the object's digest and
facts. An entry whose digest does not match counts as absent, so it is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tilecast.heuristics.files import write_atomically
from tilecast.kernels.object_facts import KernelResources, read_resources
from tilecast.kernels.spec import KernelSpec


def default_root() -> Path:
    """``$TILECAST_CACHE``, or ``tilecast`` under the user's cache folder."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    return Path(os.environ.get("TILECAST_CACHE", cache_home / "tilecast")).expanduser()


@dataclass(frozen=True)
class ObjectCache:
    """A folder of compiled kernels. Any number of processes may read and write it at once."""

    root: Path
    """The folder; made when first written to."""

    def path(self, spec: KernelSpec) -> Path:
        """Where the object of a spec lies, whether or not it is there."""
        return self.root / f"{spec.key}.o"

    def resources(self, spec: KernelSpec) -> KernelResources | None:
        """Registers and spills of a whole entry; None when it is absent, cut short or altered."""
        path = self.path(spec)
        try:
            entry = json.loads(path.with_suffix(".json").read_text())
            code = path.read_bytes()
            if hashlib.sha256(code).hexdigest() != entry["sha256"]:
                return None
            return KernelResources(**entry["resources"])
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None

    def put(self, spec: KernelSpec, code: bytes) -> KernelResources:
        """Store an object and its facts.

        Raises:
            TilecastError: the folder is read-only, the disk is full, or the code is damaged.
        """
        resources = read_resources(code)
        path = self.path(spec)
        entry = spec.facts() | {
            "sha256": hashlib.sha256(code).hexdigest(),
            "resources": asdict(resources),
        }
        write_atomically(path, lambda file: file.write_bytes(code))
        write_atomically(
            path.with_suffix(".json"), lambda file: file.write_text(json.dumps(entry, indent=1))
        )
        return resources
