"""ELF reading against `nm`, ELF writing against the real dynamic linker."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

HANDLER = """
#include <string.h>
char last[64];
unsigned long note(const char *name) { strncpy(last, name, 63); return 42; }
"""
CALLER = """
extern unsigned long alpha(void), beta(void);
unsigned long call_alpha(void) { return alpha(); }
unsigned long call_beta(void) { return beta(); }
"""


def build(folder: Path, name: str, source: str, *options: str) -> Path:
    (folder / (name + ".c")).write_text(source)
    target = folder / name
    command = [
        "cc",
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{name}",
        "-o",
        target,
        folder / (name + ".c"),
        *options,
    ]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="module")
def libraries(tmp_path_factory, elf):
    """libnote.so (the handler), libreal.so.1 (placeholders), libcaller.so (linked against a real twin)."""
    folder = tmp_path_factory.mktemp("elf")
    build(folder, "libnote.so", HANDLER)
    (folder / "map").write_text("LIBREAL_1 { global: *; };")
    twin = build(
        folder, "libreal.so.1", "unsigned long alpha(void) { return 1; } unsigned long beta(void) { return 2; }",
        f"-Wl,--version-script={folder}/map",
    )  # fmt: skip
    caller = build(folder, "libcaller.so", CALLER, str(twin))
    symbols = {"alpha": "LIBREAL_1", "beta": "LIBREAL_1", "gamma": None}
    image = elf.write_placeholders("libreal.so.1", symbols, "libnote.so", "note")
    twin.write_bytes(image)
    return folder, caller


def test_imports_and_needs_are_those_that_nm_prints(elf, libraries):
    _, caller = libraries
    library = elf.read_library(str(caller))
    assert "libreal.so.1" in library.needed
    undefined = subprocess.run(
        ["nm", "-D", "--undefined-only", caller], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1].split("@")[0] for line in undefined.stdout.splitlines()}
    assert {i.name for i in library.imports} == names
    assert elf.Import("alpha", "LIBREAL_1", "libreal.so.1") in library.imports


def test_exports_are_read_when_asked_for(elf, libraries):
    folder, _ = libraries
    assert set(elf.read_library(str(folder / "libnote.so"), exports=True).exports) >= {"note", "last"}
    assert elf.read_library(str(folder / "libnote.so")).exports == {}


def test_placeholders_satisfy_a_versioned_library_and_pass_their_name(libraries):
    folder, _ = libraries
    program = f"""
import ctypes
note = ctypes.CDLL("{folder}/libnote.so", mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL("{folder}/libreal.so.1", mode=ctypes.RTLD_GLOBAL)
caller = ctypes.CDLL("{folder}/libcaller.so")
for function in ("alpha", "beta"):
    answer = getattr(caller, "call_" + function)()
    print(answer, (ctypes.c_char * 64).in_dll(note, "last").value.decode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["42 alpha", "42 beta"]


def test_a_library_without_placeholders_loads(elf, libraries, tmp_path):
    folder, _ = libraries
    ctypes.CDLL(str(folder / "libnote.so"), mode=ctypes.RTLD_GLOBAL)
    target = tmp_path / "libempty.so"
    target.write_bytes(elf.write_placeholders("libempty.so", {}, "libnote.so", "note"))
    assert ctypes.CDLL(str(target)).note(b"hello") == 42  # found in the library that it needs


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_what_is_no_library_is_refused_by_name(elf, tmp_path, content):
    path = tmp_path / "thing.so"
    path.write_bytes(content)
    with pytest.raises(elf.NotElf, match="thing.so"):
        elf.read_library(str(path))
