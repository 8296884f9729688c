import sys

import pytest

from bench.coverage.rows import Row, RowError, read, read_all, select
from bench.coverage.run import Cause, Result, judge, run
from bench.coverage.table import markdown, summary

MIB = 1024**2


def row(**changes):
    return Row(**({"name": "SGD", "group": "Plain loops", "command": ("{python}", "plain.py")} | changes))


def printed(**changes):
    """What `gpumem estimate --json` prints, as far as the table reads it."""
    made = {"status": "exact", "reserved_peak_bytes": 40 * MIB, "allocated_peak_bytes": 32 * MIB, "steps": 3}
    return made | {"by_owner": {"parameters": 8 * MIB, "slack": 32 * MIB}, "host_memory_bytes": MIB} | changes


def test_every_row_names_a_script_that_is_there():
    from bench.coverage.rows import SCRIPTS

    for one in read_all():
        scripts = [word for word in one.command if word.endswith((".py", ".sbatch", ".sh"))]
        assert scripts, one.name
        assert (SCRIPTS / scripts[0]).is_file(), one.name


def test_rows_are_checked(tmp_path):
    file = tmp_path / "rows.toml"
    file.write_text('[[row]]\nname = "a"\ngroup = "g"\ncommand = ["x"]\nstatus = "good"\n')
    with pytest.raises(RowError, match=r"(?s)rows\.toml: .*status"):
        read([file])
    file.write_text(2 * '[[row]]\nname = "a"\ngroup = "g"\ncommand = ["x"]\n')
    with pytest.raises(RowError, match="two rows called a"):
        read([file])


def test_the_interpreter_takes_its_place():
    assert row().words() == [sys.executable, "plain.py"]


def test_rows_are_chosen_by_name_and_by_group():
    rows = [row(), row(name="AdamW, fused"), row(name="GPT-2", group="Models")]
    assert [one.name for one in select(rows, ["Adam*"])] == ["AdamW, fused"]
    assert [one.name for one in select(rows, ["plain*", "Models"])] == ["GPT-2"]
    assert select(rows, []) == rows


@pytest.mark.parametrize(
    ("may", "is_", "fault"),
    [
        ("exact", "exact", None),
        ("bounded", "exact", None),
        ("exact", "bounded", "bounded, should be exact"),
        ("failed", "failed", None),
        ("bounded", "failed", "failed, should be bounded"),
    ],
)
def test_a_row_is_at_fault_when_it_is_worse_than_it_may_be(may, is_, fault):
    assert judge(row(status=may), printed(status=is_, reason="it broke"), 1.0).fault == fault


def test_less_than_arithmetic_asks_for_is_a_fault():
    wants = {"parameters": 4 * MIB, "bytes_each": 8}
    assert judge(row(**wants), printed(), 1.0).fault is None
    assert "below parameters" in judge(row(**wants), printed(allocated_peak_bytes=32 * MIB - 1), 1.0).fault


def test_owners_that_do_not_sum_to_the_peak_are_a_fault():
    assert "do not sum" in judge(row(), printed(by_owner={"parameters": MIB}), 1.0).fault


def test_what_prints_no_estimate_has_failed_for_its_last_words():
    result = judge(row(), {}, 1.0, "Traceback\ngpumem: no such GPU\n")
    assert (result.status, result.reason) == ("failed", "gpumem: no such GPU")


def test_a_row_whose_module_is_missing_is_not_run():
    result = run(row(requires=("no_such_module",)))
    assert (result.status, result.reason, result.fault) == (None, "no_such_module not installed", None)


def test_the_page_says_what_each_estimate_hangs_on():
    cause = Cause(what="aten::nonzero", kind="op", bytes=3 * MIB)
    results = [
        judge(row(), printed(), 2.0),
        judge(
            row(name="a|b", status="bounded"), printed(status="bounded", bounded_by=[cause.model_dump()]), 3.0
        ),
        Result(name="x", group="Models", status=None, expected="exact", reason="y not installed"),
    ]
    page = markdown(results, "torch 2.14.1.", 2)
    assert "| SGD | exact | 2.0 | 1.0 MiB | 40.0 MiB |  |" in page
    assert "| a\\|b | bounded | 3.0 | 1.0 MiB | 40.0 MiB | `aten::nonzero` (3.0 MiB) |" in page
    assert "| x | not run |  |  |  | y not installed |" in page
    assert summary(results) == "2 rows: 1 exact, 1 bounded, 0 failed; 1 not run."
