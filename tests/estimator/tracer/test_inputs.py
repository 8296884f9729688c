"""Which files an estimate depends on."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    "path", ["/home/u/train.py", "/var/home/u/train.py", "/var/tmp/u/train.py", "/scratch/data.bin"]
)
def test_files_of_users_are_inputs_wherever_they_lie(device, path):
    assert not importlib.import_module("_gpumem_tracer.inputs").is_installed(path)


@pytest.mark.parametrize(
    "path", ["/usr/lib/x.py", "/etc/passwd", f"{sys.prefix}/lib/x.py", "/home/u/env/lib/site-packages/x.py"]
)
def test_installed_files_are_not(device, path):
    assert importlib.import_module("_gpumem_tracer.inputs").is_installed(path)
