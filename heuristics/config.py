"""One point of a tuning space: how a kernel is cut up, whatever it multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, order=True)
class KernelConfig:
    """What every family's configs have in common; a family adds its knobs as fields.

    Configs of one family are ordered by their fields, and a name belongs to one config of one
    family.
    """

    family: ClassVar[str]
    """Name of the kernel family."""

    @property
    def name(self) -> str:
        """A stable, readable key, which `tilecast.kernels.families.parse_config` reads."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The name."""
        return self.name
