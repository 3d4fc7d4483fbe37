"""Contract with PyTorch: every place that is patched exists in the installed version."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter

import pytest

from tilecast.inductor_hook.patch.torch_versions import PLACES, Place, torch_version


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.module}.{place.name}")
def test_a_place_that_is_patched_is_there(place: Place) -> None:
    if torch_version() < place.since:
        pytest.skip(f"PyTorch has it since {place.since}")
    attrgetter(place.name)(import_module(place.module))  # raises AttributeError where it is not
