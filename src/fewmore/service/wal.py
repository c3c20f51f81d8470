"""Check SQLite's write-ahead log, which SQLite reads only up to the first damaged frame.

    file    = header (32 bytes), frame …
    frame   = page number, database size after a commit or 0 (4 bytes each), salts (8 bytes),
              checksum (8 bytes), page

A checksum covers everything before it, see https://sqlite.org/fileformat2.html#walformat. What
lies behind a damaged frame is lost to SQLite without a word. `rechain` makes it readable again:
each stored change has a checksum of its own, which tells the whole ones from the damaged one.
"""

import struct

MAGIC = 0x377F0682  # and this + 1, with big-endian checksums
FORMAT = 3007000
PAGE = 4096  # bytes, where the header does not say
_HEADER = 32
_FRAME = 24


def committed(wal: bytes) -> int:
    """Return the length of the part that SQLite uses: whole frames up to the last commit."""
    if len(wal) < _HEADER:
        return 0
    magic, _, page = struct.unpack_from(">III", wal)
    order = _order(magic)
    sums = _checksum(wal[:24], (0, 0), order)
    if magic not in (MAGIC, MAGIC + 1) or struct.unpack_from(">II", wal, 24) != sums:
        return 0
    end = _HEADER
    for start in range(_HEADER, len(wal) - _FRAME - page + 1, _FRAME + page):
        body = start + _FRAME
        sums = _checksum(wal[start : start + 8] + wal[body : body + page], sums, order)
        if wal[start + 8 : start + 16] != wal[16:24]:
            break
        if struct.unpack_from(">II", wal, start + 16) != sums:
            break
        if struct.unpack_from(">I", wal, start + 4)[0]:
            end = body + page
    return end


def rechain(wal: bytes) -> bytes:
    """Return the log with checksums that fit its frames as they are, damaged or not."""
    magic, _, page = struct.unpack_from(">III", wal.ljust(12, b"\0"))
    if magic not in (MAGIC, MAGIC + 1) or page not in (2**n for n in range(9, 17)):
        magic, page = MAGIC, PAGE
    order = _order(magic)
    salts = b"\1" * 8
    header = struct.pack(">IIII", magic, FORMAT, page, 0) + salts
    sums = _checksum(header, (0, 0), order)
    parts = [header, struct.pack(">II", *sums)]
    for start in range(_HEADER, len(wal) - _FRAME - page + 1, _FRAME + page):
        head, body = wal[start : start + 8], wal[start + _FRAME : start + _FRAME + page]
        if not struct.unpack_from(">I", head)[0]:  # no page has the number 0
            continue
        sums = _checksum(head + body, sums, order)
        parts += [head, salts, struct.pack(">II", *sums), body]
    return b"".join(parts)


def _order(magic: int) -> str:
    return ">" if magic & 1 else "<"


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for word, other in zip(words, words, strict=True):
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
