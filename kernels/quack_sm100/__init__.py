"""QuACK's GEMM for Blackwell's data centre parts (B200, B300): it compiles, and has never run."""
