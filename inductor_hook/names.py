"""The names by which users switch tilecast on. PyTorch's import reads them: nothing is imported."""

VARIABLE = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"
"""The environment variable with Inductor's list of GEMM backends."""
BACKEND = "TILECAST"
"""The backend's name in that list."""
EAGER = "TILECAST_EAGER"
"""The variable that switches eager multiplications to tilecast."""
MODEL = "TILECAST_MODEL"
"""The variable that names the folder of a model to use instead of the shipped ones."""


def names(backends: str, backend: str = BACKEND) -> bool:
    """Whether a comma-separated list of GEMM backends names one, by default tilecast."""
    return backend in map(str.strip, backends.upper().split(","))
