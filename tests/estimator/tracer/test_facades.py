"""Which libraries are stood in for, and what they hold."""

import pytest


def test_every_cuda_library_of_the_installed_torch_gets_a_facade(facades):
    import importlib.util
    import os

    folder = os.path.dirname(importlib.util.find_spec("torch").origin)
    found = facades.placeholders(facades.libraries_of(folder), ())
    families = {soname.split(".")[0] for soname in found}
    assert families >= {
        "libcuda",
        "libcudart",
        "libcublas",
        "libcublasLt",
        "libcudnn",
        "libnccl",
        "libcusolver",
    }
    assert "cudaMalloc" in next(symbols for name, symbols in found.items() if name.startswith("libcudart"))
    assert "ncclCommInitRank" in found["libnccl.so.2"]


def test_what_the_device_implements_is_no_placeholder(facades):
    import importlib.util
    import os

    folder = os.path.dirname(importlib.util.find_spec("torch").origin)
    found = facades.placeholders(facades.libraries_of(folder), ("cudaMalloc",))
    assert not any("cudaMalloc" in symbols for symbols in found.values())


def test_a_torch_without_cuda_is_named(facades, tmp_path):
    (tmp_path / "lib").mkdir()
    with pytest.raises(facades.NoCudaTorch, match="without CUDA"):
        facades.libraries_of(str(tmp_path))
