"""Just enough of ELF: which CUDA symbols a library needs, and a writer of libraries made of placeholders.

Layouts are those of the System V gABI and the GNU symbol-versioning notes (64-bit, little endian).
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

SHT_DYNAMIC, SHT_DYNSYM, SHT_GNU_VERDEF, SHT_GNU_VERNEED, SHT_GNU_VERSYM = (
    6,
    11,
    0x6FFFFFFD,
    0x6FFFFFFE,
    0x6FFFFFFF,
)
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT = 0, 1, 4, 5, 6, 7, 8, 9
DT_STRSZ, DT_SYMENT, DT_SONAME, DT_RPATH, DT_RUNPATH = 10, 11, 14, 15, 29
DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
EM_X86_64 = 62
R_X86_64_GLOB_DAT = 6
PAGE = 4096

_SYMBOL = struct.Struct("<IBBHQQ")


class NotElf(Exception):
    """The file is not a 64-bit little-endian ELF library; the text names it."""


class Import(NamedTuple):
    """A symbol that a library leaves to others; `version` and `library` are None where it names none."""

    name: str
    version: Optional[str]
    library: Optional[str]


class Library(NamedTuple):
    """What a shared library asks for and offers; `folders`: where it wants its needs to be looked for."""

    needed: List[str]
    folders: List[str]
    imports: List[Import]
    exports: Dict[str, Optional[str]]


def read_library(path: str, exports: bool = False, symbols: bool = True) -> Library:
    """Reads the library at `path`: its dynamic symbols unless not wanted, its exports only when asked for.

    Raises:
        NotElf: the file is something else.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                library = _read(data, exports, symbols)
        except (struct.error, IndexError, KeyError, OverflowError, ValueError) as error:
            raise NotElf("%s: %s" % (path, error)) from None
    here = os.path.dirname(os.path.abspath(path))
    folders = [folder.replace("${ORIGIN}", here).replace("$ORIGIN", here) for folder in library.folders]
    return library._replace(folders=folders)


def _read(data: mmap.mmap, want_exports: bool, want_symbols: bool) -> Library:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    table, entry_size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]
    by_type = {section[1]: section for section in sections}

    def strings_of(section: Tuple[int, ...]) -> int:
        return int(sections[section[6]][4])

    def text(base: int, offset: int) -> str:
        return data[base + offset : data.find(b"\0", base + offset)].decode()

    needed: List[str] = []
    folders: List[str] = []
    dynamic = by_type.get(SHT_DYNAMIC)
    if dynamic is not None:
        strings = strings_of(dynamic)
        for tag, value in struct.iter_unpack("<qQ", data[dynamic[4] : dynamic[4] + dynamic[5]]):
            if tag == DT_NULL:
                break
            if tag == DT_NEEDED:
                needed.append(text(strings, value))
            elif tag in (DT_RPATH, DT_RUNPATH):
                folders += [folder for folder in text(strings, value).split(":") if folder]
    symbols = by_type.get(SHT_DYNSYM)
    if symbols is None or not want_symbols:
        return Library(needed, folders, [], {})
    strings = strings_of(symbols)
    versions = _version_names(data, by_type, strings_of, text)
    versym = by_type.get(SHT_GNU_VERSYM)
    numbers: Tuple[int, ...] = ()
    if versym is not None:
        numbers = struct.unpack_from("<%dH" % (versym[5] // 2), data, versym[4])
    imports, exports = [], {}
    for i, (name, _info, _other, section, _value, _size) in enumerate(
        _SYMBOL.iter_unpack(data[symbols[4] : symbols[4] + symbols[5]])
    ):
        if name == 0 or (section != 0 and not want_exports):
            continue
        version, library = versions.get(numbers[i] & 0x7FFF, (None, None)) if numbers else (None, None)
        if section == 0:
            imports.append(Import(text(strings, name), version, library))
        else:
            exports[text(strings, name)] = version
    return Library(needed, folders, imports, exports)


def _version_names(
    data: mmap.mmap,
    by_type: Dict[int, Tuple[int, ...]],
    strings_of: Callable[[Tuple[int, ...]], int],
    text: Callable[[int, int], str],
) -> Dict[int, Tuple[Optional[str], Optional[str]]]:
    """Version index -> (version, library that must define it or None)."""
    names: Dict[int, Tuple[Optional[str], Optional[str]]] = {}
    section = by_type.get(SHT_GNU_VERNEED)
    if section is not None:
        strings, at = strings_of(section), section[4]
        for _ in range(section[7]):
            _v, entries, file, first, following = struct.unpack_from("<HHIII", data, at)
            aux = at + first
            for _ in range(entries):
                _hash, _flags, index, name, step = struct.unpack_from("<IHHII", data, aux)
                names[index] = (text(strings, name), text(strings, file))
                aux += step
            at += following
    section = by_type.get(SHT_GNU_VERDEF)
    if section is not None:
        strings, at = strings_of(section), section[4]
        for _ in range(section[7]):
            _v, flags, index, _entries, _hash, first, following = struct.unpack_from("<HHHHIII", data, at)
            if not flags & 1:  # the base definition names the file, not a version
                names[index] = (text(strings, struct.unpack_from("<I", data, at + first)[0]), None)
            at += following
    return names


def _hash(name: str) -> int:
    """The gABI's symbol hash."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value & 0xFFFFFFFF


def write_placeholders(soname: str, symbols: Dict[str, Optional[str]], needed: str, handler: str) -> bytes:
    """The bytes of a shared library (x86-64) named `soname`.

    Each of `symbols` (name -> version node, None for unversioned) becomes a function that calls
    `handler(name)` of the library `needed` and returns what that returns.
    """
    nodes = sorted({node for node in symbols.values() if node is not None})
    names = sorted(symbols)
    strings = _Strings()
    table = [_SYMBOL.pack(0, 0, 0, 0, 0, 0), _SYMBOL.pack(strings.add(handler), 0x10, 0, 0, 0, 0)]
    offsets = [strings.add(name) for name in names]
    for text in (soname, needed, *nodes):
        strings.add(text)

    # one read-only, executable segment: headers, tables, code and the names that the code passes on
    layout = _Layout(64 + 56 * 4)
    count = len(names) + 2
    symbols_at = layout.take(24 * count)
    strings_at = layout.take(len(strings.data))
    hash_at = layout.take(4 * (2 + count + count))
    versym_at = layout.take(2 * count)
    verdef_at = layout.take(28 * (len(nodes) + 1))
    rela_at = layout.take(24)
    code_at = layout.take(16 * len(names), 16)
    text_end = layout.size
    data_at = -(-text_end // PAGE) * PAGE
    dynamic_entries = 12 + (3 if nodes else 0)
    got_at = data_at + 16 * dynamic_entries
    end = got_at + 8

    code = bytearray()
    for i, offset in enumerate(offsets):
        at = code_at + 16 * i
        code += b"\x48\x8d\x3d" + struct.pack("<i", strings_at + offset - (at + 7))  # lea rdi, [rip + name]
        code += b"\xff\x25" + struct.pack("<i", got_at - (at + 13)) + b"\xcc\xcc\xcc"  # jmp [rip + handler]
        table.append(_SYMBOL.pack(offset, 0x12, 0, 1, at, 16))
    index_of = {node: i + 2 for i, node in enumerate(nodes)}
    versym = [0, 1] + [index_of.get(symbols[name] or "", 1) for name in names]

    buckets, chains = [0] * count, [0] * count
    for i, name in enumerate([handler, *names], start=1):
        slot = _hash(name) % count
        chains[i], buckets[slot] = buckets[slot], i

    verdef = bytearray()
    for i, node in enumerate([soname, *nodes]):
        following = 28 if i < len(nodes) else 0
        verdef += struct.pack("<HHHHIII", 1, int(i == 0), i + 1, 1, _hash(node), 20, following)
        verdef += struct.pack("<II", strings.add(node), 0)

    dynamic = [
        (DT_NEEDED, strings.add(needed)), (DT_SONAME, strings.add(soname)),
        (DT_HASH, hash_at), (DT_STRTAB, strings_at), (DT_SYMTAB, symbols_at), (DT_STRSZ, len(strings.data)),
        (DT_SYMENT, 24), (DT_RELA, rela_at), (DT_RELASZ, 24), (DT_RELAENT, 24),
    ]  # fmt: skip
    if nodes:
        dynamic += [(DT_VERSYM, versym_at), (DT_VERDEF, verdef_at), (DT_VERDEFNUM, len(nodes) + 1)]
    dynamic += [(DT_NULL, 0)] * (dynamic_entries - len(dynamic))

    image = bytearray(end)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    image[:64] = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, EM_X86_64, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0)
    headers = [
        (1, 5, 0, text_end, PAGE),  # PT_LOAD, read and execute
        (1, 6, data_at, end - data_at, PAGE),  # PT_LOAD, read and write
        (2, 6, data_at, 16 * dynamic_entries, 8),  # PT_DYNAMIC
        (0x6474E551, 6, 0, 0, 16),  # PT_GNU_STACK: not executable
    ]
    for i, (kind, flags, at, size, align) in enumerate(headers):
        struct.pack_into("<IIQQQQQQ", image, 64 + 56 * i, kind, flags, at, at, at, size, size, align)

    def put(at: int, block: bytes) -> None:
        image[at : at + len(block)] = block

    put(symbols_at, b"".join(table))
    put(strings_at, bytes(strings.data))
    put(hash_at, struct.pack("<%dI" % (2 + 2 * count), count, count, *buckets, *chains))
    put(versym_at, struct.pack("<%dH" % count, *versym))
    put(verdef_at, bytes(verdef))
    put(rela_at, struct.pack("<QQq", got_at, (1 << 32) | R_X86_64_GLOB_DAT, 0))
    put(code_at, bytes(code))
    put(data_at, b"".join(struct.pack("<qQ", tag, value) for tag, value in dynamic))
    return bytes(image)


class _Strings:
    """A string table; the same text is stored once."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._at: Dict[str, int] = {}

    def add(self, text: str) -> int:
        if text not in self._at:
            self._at[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._at[text]


class _Layout:
    """Hands out places in a file one after the other."""

    def __init__(self, start: int) -> None:
        self.size = start

    def take(self, size: int, align: int = 8) -> int:
        at = -(-self.size // align) * align
        self.size = at + size
        return at
