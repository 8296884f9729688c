"""`gpumem doctor` on this machine, and where something is in the way."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from estimator import doctor
from tests.estimator.callers import GPUMEM, Caller
from tests.estimator.test_restrict import NO_NAMESPACES


def findings(text: str) -> dict[str, doctor.Finding]:
    return {one["check"]: doctor.Finding(**one) for one in json.loads(text)}


def test_all_is_well_here(ordinary: Caller) -> None:
    done = ordinary.gpumem("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = findings(done.stdout)
    for check in ("Linux", "configuration", "GPU catalogue", "containment", "fake CUDA device"):
        assert found[check].state == "ok", found[check]
    text = ordinary.gpumem("doctor").stdout
    assert "containment" in text
    assert "\x1b" not in text


def test_without_namespaces_it_says_what_to_switch_on(ordinary: Caller, tmp_path: Path) -> None:
    def ask(*options: str) -> tuple[int, doctor.Finding]:
        done = ordinary.user.run(
            ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", NO_NAMESPACES, "sh",
             "setpriv", "--inh-caps", "-all", "--ambient-caps", "-all",
             sys.executable, "-c", GPUMEM, "doctor", "--json", *options],
            env={"HOME": str(ordinary.work)},
        )  # fmt: skip
        return done.returncode, findings(done.stdout)["containment"]

    code, found = ask()
    assert (code, found.state) == (1, "failed")
    assert "user.max_user_namespaces" in found.advice
    config = ordinary.file("gpumem.toml", "[estimate]\nrequire_containment = false\n")
    code, found = ask("--config", str(config))
    assert (code, found.state) == (0, "weak")


@pytest.mark.parametrize(
    ("release", "machine", "state"),
    [("6.1.0-18-amd64", "x86_64", "ok"), ("5.12", "x86_64", "ok"), ("4.18.0-553.el8", "x86_64", "weak"),
     ("6.1.0", "aarch64", "failed"), ("?", "x86_64", "weak")],
)  # fmt: skip
def test_kernels(release: str, machine: str, state: str) -> None:
    assert doctor._linux(release, machine).state == state


def test_a_broken_configuration_is_named(ordinary: Caller) -> None:
    config = ordinary.file("gpumem.toml", "[estimate]\nmargins = 1\n")
    done = ordinary.gpumem("doctor", "--json", "--config", str(config))
    assert done.returncode == 1
    assert "margins" in findings(done.stdout)["configuration"].found


def test_torch_is_looked_for_where_the_user_would_start_it() -> None:
    found = doctor._torch({"PATH": str(Path(sys.executable).parent)})
    assert (found.state, "CUDA" in found.found) == ("ok", True)
    assert doctor._torch({"PATH": "/nowhere"}).state == "absent"


def test_a_service_that_has_gone_leaves_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "gpumem.sock"
    assert doctor._service(path).state == "absent"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert doctor._service(path).state == "ok"
    assert doctor._service(path).state == "weak"
