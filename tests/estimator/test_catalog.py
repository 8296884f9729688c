"""The GPU catalogue: the one that is shipped, its names, and how broken ones are refused."""

from pathlib import Path

import pytest

from estimator import catalog
from estimator.catalog import CatalogError

GOOD = """
[x100]
name = "NVIDIA X100"
match = ["x100-*"]
memory_mib = 1000
usable_gib = 0.9
compute_capability = "9.0"
sm_count = 10
context_mib = 100
source = {memory = "a", usable = "b", compute_capability = "c", sm_count = "d", context = "measured"}
"""


@pytest.fixture(scope="module")
def shipped() -> catalog.Catalog:
    return catalog.load()


def test_the_shipped_catalogue_is_whole(shipped):
    assert len(shipped.gpus) >= 17
    names = [gpu.name for gpu in shipped.gpus.values()]
    assert len(set(names)) == len(names)
    for gpu in shipped.gpus.values():
        assert shipped.find(gpu.key) is shipped.find(gpu.name) is gpu
        assert 0.9 * gpu.memory_bytes < gpu.usable_bytes <= gpu.memory_bytes
        assert 50 <= gpu.context_mib <= 800
        assert gpu.kernels_mib and gpu.cudnn_mib and gpu.nccl_channels and gpu.nccl_mib_per_channel
        assert (7, 0) <= gpu.capability <= (12, 0)
        sources = gpu.source.model_dump()
        assert all(text for what, text in sources.items() if what not in ("mig", "convolutions"))
        assert bool(sources["mig"]) == bool(gpu.mig)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("nvidia_a100_80gb_pcie", "a100-80gb"),
        ("a100_80g", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("nvidia_a100-sxm4-40gb", "a100-40gb"),
        ("Tesla V100-PCIE-32GB", "v100-32gb"),
        ("tesla_v100-sxm2-16gb", "v100-16gb"),
        ("tesla_t4", "t4"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("H100", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("nvidia_geforce_rtx_3090", "rtx-3090"),
        ("rtx4090", "rtx-4090"),
        ("l4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 5070 Ti", "rtx-5070-ti"),
        ("NVIDIA GeForce RTX 3080", "rtx-3080"),
    ],
)
def test_names_of_nvml_and_of_gres(shipped, name, key):
    assert shipped.find(name).key == key


@pytest.mark.parametrize(
    "name", ["NVIDIA H20", "NVIDIA GeForce RTX 3060 Ti", "NVIDIA H100 NVL", "a10g", "", "gpu"]
)
def test_an_unknown_gpu_is_an_error_that_lists_the_known_ones(shipped, name):
    with pytest.raises(CatalogError, match="unknown GPU; known: v100-16gb, .*rtx-5090.*"):
        shipped.find(name)


def test_a_name_of_two_gpus_is_an_error_that_names_them(shipped):
    with pytest.raises(CatalogError, match="A100: which one\\? a100-40gb or a100-80gb"):
        shipped.find("A100")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("nvidia_a100_80gb_pcie_1g.10gb", "a100-80gb:1g.10gb"),
        ("a100-80gb:1g.10gb", "a100-80gb:1g.10gb"),
        ("a100-sxm4-40gb_3g.20gb", "a100-40gb:3g.20gb"),
        ("a100_3g.20gb", "a100-40gb:3g.20gb"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "h100:3g.40gb"),
        ("mig-1g.5gb", "a100-40gb:1g.5gb"),
    ],
)
def test_parts_of_a_gpu(shipped, name, key):
    part = shipped.find(name)
    assert part.key == key
    board = shipped.find(key.partition(":")[0])
    assert part.sm_count < board.sm_count
    assert part.context_bytes < part.usable_bytes <= part.memory_bytes < board.memory_bytes
    assert part.context_is_estimate


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("1g.10gb", "a part of which GPU? a100-40gb:1g.10gb or a100-80gb:1g.10gb or h100:1g.10gb"),
        ("t4:1g.10gb", "no such part of a GPU .MIG. is known; known: a100-40gb:1g.10gb, "),
        ("mig-1g", "name a part of a GPU .MIG. by its profile"),
    ],
)
def test_parts_of_a_gpu_that_are_not_clear(shipped, name, complaint):
    with pytest.raises(CatalogError, match=complaint.replace("?", "[?]")):
        shipped.find(name)


def test_values_that_all_gpus_have_in_common():
    common = "[outside]\nkernels_mib = 7\ncudnn_mib = 9\n[outside.source]\nkernels = 'k'\ncudnn = 'c'\n"
    own = GOOD.replace(
        "context_mib = 100", "context_mib = 100\ncudnn_mib = 3\n[x100.context_mib_by_cuda]\n12 = 90"
    )
    own = own.replace("source = {", "[x100.source]\n").replace("}", "").replace('", ', '"\n')
    gpu = catalog.parse(common + own + '\ncudnn = "mine"\n', "gpus.toml").find("x100")
    assert (gpu.kernels_mib, gpu.cudnn_mib, gpu.nccl_channels) == (7, 3, 0)
    assert (gpu.source.kernels, gpu.source.cudnn) == ("k", "mine")
    assert gpu.context_bytes_under("12.4") == 90 * 1024**2
    assert gpu.context_bytes_under("13.0") == gpu.context_bytes_under(None) == 100 * 1024**2


def test_a_catalogue_of_the_site(tmp_path):
    path = tmp_path / "gpus.toml"
    path.write_text(GOOD)
    gpu = catalog.load(path).find("nvidia_x100-sxm")
    assert (gpu.memory_bytes, gpu.context_bytes, gpu.capability) == (1000 * 1024**2, 100 * 1024**2, (9, 0))
    assert gpu.usable_bytes == int(0.9 * 1024**3)
    assert not gpu.context_is_estimate


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("sm_count = 10", "", "sm_count: Field required"),
        ("sm_count = 10", "sm_count = -1", "sm_count"),
        ("sm_count = 10", "sm_count = 10\nsmcount = 10", "smcount: Extra inputs"),
        ('memory = "a", ', "", "source.memory: Field required"),
        ("usable_gib = 0.9", "usable_gib = 1.9", "does not hold"),
        ("context_mib = 100", "context_mib = 950", "does not hold"),
        ('"9.0"', '"nine"', "compute_capability"),
        ("[x100]", "[x100", "not valid TOML"),
        ("[x100]", "x100 = 3\n[y]", "x100"),
    ],
)
def test_a_broken_catalogue_is_refused(old, new, complaint):
    assert old in GOOD
    with pytest.raises(CatalogError, match=complaint) as caught:
        catalog.parse(GOOD.replace(old, new), "gpus.toml")
    assert str(caught.value).startswith("gpus.toml: ")


def test_where_the_catalogue_is_looked_for(tmp_path):
    beside, site, installed = catalog.candidates(None)
    assert beside == Path(catalog.__file__).parents[1] / "etc" / "gpus.toml"
    assert site == Path("/etc/gpumem/gpus.toml")
    assert installed.parts[-3:] == ("share", "gpumem", "gpus.toml")
    missing = tmp_path / "none.toml"
    assert catalog.candidates(missing) == [missing]
    with pytest.raises(CatalogError, match=r"none\.toml; set estimate\.gpus_file"):
        catalog.load(missing)
