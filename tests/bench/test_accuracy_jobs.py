"""The rows of measured jobs are read as what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.accuracy import census, jobs

XMEM = (
    "set,run_dir,model,optimizer,batch_size,gpu,zero_grad_mode,ground_nvml_peak_bytes,real_oom,"
    "xmem_estimate_bytes\n"
    "a,VGG19_Adam_3_1_x,VGG19,Adam,3,RTX3060,null,1000,false,900\n"
    "a,opt_SGD_2_0,facebook/opt-125m,SGD,2,RTX4060,2,2000,true,2100\n"
)
TIMM = (
    "Filename,Batch Size,Max GPU Memory (MiB),GB after Forward,GB after Backward,Last Numeric Value,"
    "Percentage,Difference\nresnet50_8.out,8,3000,1,2,1500.5,3,4\nresnet50_16.out,16,4000,1,2,2500,3,4\n"
)
MLP = (
    "Filename,Batch Size,Max GPU Memory (MiB)\n"
    "input:596_output:99_depth:3_arch:uniform_batch:122_act:leaky_relu_dropout:0.33_dropout:False_"
    "batchnorm:True.out,122,1475\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Public rows of one or two jobs each."""
    (tmp_path / "xmem_rows.csv").write_text(XMEM)
    (tmp_path / "timm_a100.csv").write_text(TIMM)
    (tmp_path / "mlp_a100.csv").write_text(MLP)
    return tmp_path


def test_an_xmem_row_becomes_the_command_of_its_script(folder: Path) -> None:
    first, second = jobs.read(folder, ["xmem"])
    assert first.command[1:] == ("vgg19", "--batch", "3", "--optimizer", "Adam", "--zero-grad", "start")
    assert (first.gpu, first.truth_bytes, first.published) == ("rtx-3060", 1000, {"xMem": 900})
    assert not first.zero_grad_known and not first.capped
    assert second.zero_grad_known and second.capped
    assert second.command[0].endswith("xmem_transformer.py") and second.command[-1] == "after-step"


def test_a_timm_row_has_fake_tensors_answer_in_bytes(folder: Path) -> None:
    first, second = jobs.read(folder, ["timm"])
    assert (first.model, first.batch, first.truth_bytes) == ("resnet50", 8, 3000 * jobs.MIB)
    assert first.published == {"FakeTensor (GPUMemNet)": int(1500.5 * jobs.MIB)}
    assert second.name == "resnet50_16" and not second.capped


def test_a_rows_name_is_the_whole_configuration_of_an_mlp(folder: Path) -> None:
    (job,) = jobs.read(folder, ["mlp"])
    words = " ".join(job.command)
    assert "--input 596 --output 99 --depth 3 --architecture uniform --batch 122" in words
    assert "--activation leaky_relu" in words and "--batch-norm" in words and "--dropout" not in words


@pytest.mark.parametrize(
    ("peaks", "early"),
    [
        ({8: 6000, 16: 9000, 32: 15000, 64: 28000, 128: 3000}, {128}),
        ({8: 30000, 16: 40100, 32: 39000}, {16, 32}),
        ({8: 2100, 16: 2100, 32: 2100}, {8, 16, 32}),
        ({8: 7000, 16: 3700, 32: 5400, 64: 8900}, set()),  # a slow first answer of cuDNN, not lack of memory
        ({8: 25000, 16: 9000}, {16}),
    ],
)
def test_runs_that_ended_early_are_told_from_peaks_alone(peaks: dict[int, float], early: set[int]) -> None:
    assert {batch for batch in peaks if jobs.ended_early(peaks, batch)} == early


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(jobs.RowsError, match="mlp_a100.csv"):
        jobs.read(tmp_path, ["mlp"])


def test_a_census_grows_with_the_batch_but_not_its_parameters() -> None:
    found = {
        "parameters": {"float32": 10, "float16": 2}, "buffers": {"int64": 3}, "parameter_tensors": 2,
        "layers": [["Linear", 12, 8, 16]], "input_elements": 8,
    }  # fmt: skip
    small = census.parse(found)
    large = census.scaled(small, 4, 8)
    assert small.parameter_bytes == 44 and small.buffer_bytes == 24
    assert large.parameter_bytes == 44 and large.output_elements == 32 and large.input_elements == 16


def test_a_model_that_cannot_be_counted_says_why() -> None:
    with pytest.raises(census.CensusError, match="no such model"):
        census.parse({"error": "no such model"})
