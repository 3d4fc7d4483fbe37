"""What benchmarks read of generated code and of the hook's log is what this PyTorch writes."""

from __future__ import annotations

import pytest
import torch
import variants


def test_generated_code_and_reasons_of_this_pytorch_are_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from torch._inductor.utils import fresh_cache

    variant = variants.Variant("ATEN,TILECAST k=1")
    x, w = torch.randn(8, 64), torch.randn(32, 64)
    with (
        fresh_cache(),
        variants.without_choice() as reasons,
        variants.competing(variant) as sources,
    ):
        out = variants.compiled(variants.linear, variant)(x, w)
    assert torch.allclose(out, x @ w.t(), atol=1e-5)
    assert variants.selection("\n".join(sources)) == "aten"
    assert reasons == {"mm: device cpu": 1}
    assert "no choice" not in capsys.readouterr().err
