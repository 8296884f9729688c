"""Reads pickles of plain data without running what is in them.

Python's own unpickler calls whatever a pickle names. This one knows only the opcodes that build dicts, lists,
tuples, sets, text, bytes, numbers, booleans and None; at any other it stops. Keys of dicts are texts and
numbers only, and nothing here follows what was built, so that depth or cycles among the data do no harm.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Kind = TypeVar("_Kind")

CALLING = {
    "c": "GLOBAL", "i": "INST", "o": "OBJ", "R": "REDUCE", "b": "BUILD", "P": "PERSID", "Q": "BINPERSID",
    "\x81": "NEWOBJ", "\x92": "NEWOBJ_EX", "\x93": "STACK_GLOBAL",
    "\x82": "EXT1", "\x83": "EXT2", "\x84": "EXT4", "\x97": "NEXT_BUFFER",
}  # fmt: skip


class PickleRefused(ValueError):
    """The bytes are not a pickle of plain data, or a larger one than is read; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pickle may hold: containers in all, containers that are open at once, values on the stack."""

    containers: int = 20_000_000
    depth: int = 64
    stack: int = 100_000
    integer_bytes: int = 9


def loads(data: bytes, limits: Limits = Limits()) -> object:
    """The value in a pickle of protocol 2 or later; bytes behind its end are ignored, as in `pickle.loads`.

    Raises:
        PickleRefused: it would call something, is damaged or incomplete, or exceeds `limits`.
    """
    if data[:1] != b"\x80":
        raise PickleRefused("it is no pickle of protocol 2 or later")
    reader = _Reader(data, limits)
    try:
        return reader.run()
    except (IndexError, KeyError, struct.error):
        raise PickleRefused("it is damaged or incomplete") from None
    except MemoryError:
        raise PickleRefused("it needs more memory than there is") from None


class _Reader:
    """A stack machine: `stack` has the values above the last MARK, `marked` those below each MARK."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data = data
        self.at = 0
        self.limits = limits
        self.containers = 0
        self.below = 0  # values on the stacks in `marked`
        self.stack: list[object] = []
        self.marked: list[list[object]] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        data, table = self.data, _TABLE
        while True:
            opcode = data[self.at]
            self.at += 1
            if opcode == _STOP:
                return self.stack.pop()
            handler = table[opcode]
            if handler is None:
                self._refuse(opcode)
            else:
                handler(self)

    def _refuse(self, opcode: int) -> None:
        name = CALLING.get(chr(opcode))
        if name:
            raise PickleRefused(f"it would run code when it is loaded ({name} at byte {self.at - 1})")
        raise PickleRefused(f"byte {self.at - 1} is none that a pickle of plain data has")

    def _take(self, count: int) -> bytes:
        begin, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise PickleRefused("it is damaged or incomplete")
        return self.data[begin : self.at]

    def _unsigned(self, count: int) -> int:
        return int.from_bytes(self._take(count), "little")

    def _push(self, value: object) -> None:
        self.stack.append(value)

    def _open(self, value: object) -> None:
        """Pushes a new container."""
        self.containers += 1
        if self.containers > self.limits.containers:
            raise PickleRefused(f"it has more than {self.limits.containers} lists and dicts")
        if len(self.stack) + self.below > self.limits.stack:
            raise PickleRefused("it is nested too deeply")
        self.stack.append(value)

    # --- opcodes ---

    def proto(self) -> None:
        version = self._unsigned(1)
        if not 2 <= version <= 5:
            raise PickleRefused(f"pickle protocol {version} is not known")

    def frame(self) -> None:
        self._take(8)

    def mark(self) -> None:
        if len(self.marked) >= self.limits.depth:
            raise PickleRefused("it is nested too deeply")
        self.marked.append(self.stack)
        self.below += len(self.stack)
        self.stack = []

    def since_mark(self) -> list[object]:
        values = self.stack
        self.stack = self.marked.pop()
        self.below -= len(self.stack)
        return values

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def put1(self) -> None:
        self.memo[self._unsigned(1)] = self.stack[-1]

    def put4(self) -> None:
        self.memo[self._unsigned(4)] = self.stack[-1]

    def get1(self) -> None:
        self.stack.append(self.memo[self.data[self.at]])
        self.at += 1

    def get4(self) -> None:
        at = self.at
        self.stack.append(self.memo[int.from_bytes(self.data[at : at + 4], "little")])
        self.at = at + 4

    def int1(self) -> None:
        self.stack.append(self.data[self.at])
        self.at += 1

    # numbers cut short by the end of the data do no harm: the next opcode is missing then

    def int2(self) -> None:
        at = self.at
        self.stack.append(int.from_bytes(self.data[at : at + 2], "little"))
        self.at = at + 2

    def int4(self) -> None:
        at = self.at
        self.stack.append(int.from_bytes(self.data[at : at + 4], "little", signed=True))
        self.at = at + 4

    def long1(self) -> None:
        self._long(self.data[self.at], self.at + 1)

    def long4(self) -> None:
        self._long(self._unsigned(4), self.at)

    def _long(self, count: int, begin: int) -> None:
        if count > self.limits.integer_bytes:
            raise PickleRefused("it has an integer of more than 64 bits")
        self.at = begin + count
        self.stack.append(int.from_bytes(self.data[begin : self.at], "little", signed=True))

    def double(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0])

    def text(self, length_bytes: int) -> None:
        self._push(self._take(self._unsigned(length_bytes)).decode("utf-8", "replace"))

    def octets(self, length_bytes: int) -> None:
        self._push(self._take(self._unsigned(length_bytes)))

    def empty_dict(self) -> None:
        self._open({})

    def empty_list(self) -> None:
        self._open([])

    def empty_set(self) -> None:
        self._open(set())

    def empty_tuple(self) -> None:
        self._push(())

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise PickleRefused("it is damaged or incomplete")
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        self._open(values)

    def marked_tuple(self) -> None:
        self._open(tuple(self.since_mark()))

    def marked_list(self) -> None:
        self._open(self.since_mark())

    def marked_dict(self) -> None:
        made: dict[object, object] = {}
        self._fill(made, self.since_mark())
        self._open(made)

    def frozen_set(self) -> None:
        made: set[object] = set()
        self._add(made, self.since_mark())
        self._open(frozenset(made))

    def append(self) -> None:
        value = self.stack.pop()
        self._last(list).append(value)

    def appends(self) -> None:
        values = self.since_mark()
        self._last(list).extend(values)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill(self._last(dict), [key, value])

    def set_items(self) -> None:
        values = self.since_mark()
        self._fill(self._last(dict), values)

    def add_items(self) -> None:
        values = self.since_mark()
        self._add(self._last(set), values)

    def _last(self, kind: type[_Kind]) -> _Kind:
        value = self.stack[-1]
        if not isinstance(value, kind):
            raise PickleRefused("it is damaged or incomplete")
        return value

    @staticmethod
    def _fill(target: dict[object, object], values: list[object]) -> None:
        if len(values) % 2:
            raise PickleRefused("it is damaged or incomplete")
        keys = values[::2]
        if not _KEYS.issuperset(map(type, keys)):
            raise PickleRefused("a key of a dict is neither text nor a number")
        target.update(zip(keys, values[1::2], strict=True))

    @staticmethod
    def _add(target: set[object], values: list[object]) -> None:
        if not _KEYS.issuperset(map(type, values)):
            raise PickleRefused("an element of a set is neither text nor a number")
        target.update(values)


_KEYS = {str, int, float, bool, bytes, type(None)}
_STOP = ord(".")
_OPCODES: dict[bytes, Callable[[_Reader], None]] = {
    b"\x80": _Reader.proto,
    b"\x95": _Reader.frame,
    b"(": _Reader.mark,
    b"\x94": _Reader.memoize,
    b"q": _Reader.put1,
    b"r": _Reader.put4,
    b"h": _Reader.get1,
    b"j": _Reader.get4,
    b"N": lambda reader: reader._push(None),
    b"\x88": lambda reader: reader._push(True),
    b"\x89": lambda reader: reader._push(False),
    b"K": _Reader.int1,
    b"M": _Reader.int2,
    b"J": _Reader.int4,
    b"\x8a": _Reader.long1,
    b"\x8b": _Reader.long4,
    b"G": _Reader.double,
    b"\x8c": lambda reader: reader.text(1),
    b"X": lambda reader: reader.text(4),
    b"\x8d": lambda reader: reader.text(8),
    b"C": lambda reader: reader.octets(1),
    b"B": lambda reader: reader.octets(4),
    b"\x8e": lambda reader: reader.octets(8),
    b"}": _Reader.empty_dict,
    b"]": _Reader.empty_list,
    b"\x8f": _Reader.empty_set,
    b")": _Reader.empty_tuple,
    b"\x85": lambda reader: reader.tuple_of(1),
    b"\x86": lambda reader: reader.tuple_of(2),
    b"\x87": lambda reader: reader.tuple_of(3),
    b"t": _Reader.marked_tuple,
    b"l": _Reader.marked_list,
    b"d": _Reader.marked_dict,
    b"\x91": _Reader.frozen_set,
    b"a": _Reader.append,
    b"e": _Reader.appends,
    b"s": _Reader.set_item,
    b"u": _Reader.set_items,
    b"\x90": _Reader.add_items,
}
_TABLE: list[Callable[[_Reader], None] | None] = [_OPCODES.get(bytes([code])) for code in range(256)]
