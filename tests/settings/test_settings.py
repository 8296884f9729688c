"""`gpumem.toml`: what is read, what is refused, and that the installed file documents every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from settings import Partition, Settings, SettingsError, load, parse

INSTALLED = Path(__file__).parents[2] / "etc" / "gpumem.toml"
SECTIONS: dict[str, type[BaseModel]] = {
    **{name: field.annotation for name, field in Settings.model_fields.items() if name != "partitions"},
    "partitions.gpu": Partition,
}


def documented() -> dict[str, dict[str, str]]:
    """The comment before each key (set or not) of the installed file, by section."""
    comments: dict[str, dict[str, str]] = {}
    section, comment = "", []
    for line in INSTALLED.read_text().splitlines():
        if head := re.match(r"#?\[([\w.]+)\]", line):
            section, comment = head[1], []
            comments[section] = {}
        elif key := re.match(r"#?(\w+) = ", line):
            comments[section][key[1]] = " ".join(comment)
            comment = []
        elif line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        else:
            comment = []
    return comments


def test_installed_file_is_the_defaults():
    assert load(INSTALLED) == Settings()


def test_installed_file_has_every_key_and_no_other():
    assert {name: set(keys) for name, keys in documented().items()} == {
        name: set(model.model_fields) for name, model in SECTIONS.items()
    }


@pytest.mark.parametrize(
    ("section", "key"), [(name, key) for name, model in SECTIONS.items() for key in model.model_fields]
)
def test_comment_begins_with_the_description(section, key):
    description = SECTIONS[section].model_fields[key].description
    assert description, f"{section}.{key} has no description"
    assert documented()[section][key].startswith(description)


def test_keys_without_default_are_understood_once_switched_on():
    text = re.sub(r"(?m)^#(?=\w+ = |\[)", "", INSTALLED.read_text())
    settings = parse(text, INSTALLED)
    assert settings.partitions["gpu"].shards_per_gpu == 80
    assert settings.slurm.conf == Path("/etc/slurm/slurm.conf")
    assert settings.model_copy(update={"partitions": {}}).defer == Settings().defer


def test_missing_default_file_means_defaults(monkeypatch, tmp_path):
    monkeypatch.delenv("GPUMEM_CONFIG", raising=False)
    monkeypatch.setattr("settings.DEFAULT_PATH", tmp_path / "absent.toml")
    assert load() == Settings()


def test_missing_named_file_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUMEM_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(SettingsError, match=r"absent\.toml: no such file"):
        load()


def test_environment_names_the_file(monkeypatch, tmp_path):
    (tmp_path / "g.toml").write_text("[defer]\nbudget_s = 6\n")
    monkeypatch.setenv("GPUMEM_CONFIG", str(tmp_path / "g.toml"))
    assert load().defer.budget_s == 6
    (tmp_path / "h.toml").write_text("[defer]\nbudget_s = 7\n")
    assert load(tmp_path / "h.toml").defer.budget_s == 7, "an explicit path wins"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[defer]\nbudget = 6\n", "g.toml: defer.budget: unknown key"),
        ("[defer]\nbudget_s = 1\n", "g.toml: defer.budget_s: Input should be greater than or equal to 5"),
        ("[partitions.gpu]\ngpu = 'a100-80gb'\n", "g.toml: partitions.gpu.shards_per_gpu: Field required"),
        ("[slurm]\nbackend = 'rest'\n", "g.toml: slurm.backend: Input should be 'scontrol'"),
        ("[defer\n", "g.toml: not valid TOML: "),
        ("surprise = 1\n", "g.toml: surprise: unknown key"),
    ],
)
def test_errors_name_file_key_and_problem(text, problem):
    with pytest.raises(SettingsError) as caught:
        parse(text, Path("g.toml"))
    assert str(caught.value).startswith(problem)


def test_unreadable_file_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "latin.toml")
