"""Answers travel compressed: brotli where the browser takes it, else gzip.

Files that never change (scripts, styles) are compressed once and kept; what is made anew is compressed quickly.  Arrow brings
brotli, and takes longer to load than gzip takes for all of a first page: until something else has loaded it there is gzip.
"""

import gzip
import re
import sys
import threading
from typing import Any, Final

from flask import Flask, Response, request

#: Shorter answers gain nothing.
MIN_NBYTES: Final = 1000
#: Only text shrinks; the timeline's rectangles are sent as they are, since to compress them takes longer than loopback does.
_TEXT: Final = re.compile(r"text/|application/(json|javascript|x-javascript)|image/svg\+xml")
#: Brotli's levels: plotly.js to a quarter in 0.7 s, once; an answer of 100 kB in 2 ms.
_LEVEL_OF_FILES: Final = 5
_LEVEL_OF_ANSWERS: Final = 3
_GZIP_LEVEL: Final = 6
#: Files that are kept; there are about twenty.
_MAX_FILES: Final = 200


class Compression:
    """Compresses answers, and keeps those of files."""

    def __init__(self) -> None:
        """Begin with nothing kept."""
        self._kept: dict[tuple[str, str, int], bytes] = {}
        self._lock = threading.Lock()

    def apply(self, response: Response, *, accepted: str, path: str, is_file: bool) -> Response:
        """The response, compressed if that is possible and worth it.

        Args:
            accepted: the request's Accept-Encoding.
            path: with its query, so that another version of a file is another one.
            is_file: whether the answer to this path is always the same.
        """
        encoding = choose_encoding(accepted)
        if (
            response.status_code != 200  # noqa: PLR2004
            or "Content-Encoding" in response.headers
            or not _TEXT.match(response.mimetype or "")
        ):
            return response
        response.vary.add("Accept-Encoding")
        if encoding is None:
            return response
        response.direct_passthrough = False
        content = response.get_data()
        if len(content) < MIN_NBYTES:
            return response
        response.set_data(
            self._of_file(path, encoding, content) if is_file else _compress(content, encoding, _LEVEL_OF_ANSWERS)
        )
        response.headers["Content-Encoding"] = encoding
        return response

    def _of_file(self, path: str, encoding: str, content: bytes) -> bytes:
        key = (path, encoding, len(content))
        found = self._kept.get(key)
        if found is None:
            with self._lock:  # several visitors at once wait for one to have it compressed
                found = self._kept.get(key)
                if found is None:
                    found = _compress(content, encoding, _LEVEL_OF_FILES)
                    if len(self._kept) < _MAX_FILES:
                        self._kept[key] = found
        return found


def choose_encoding(accepted: str) -> str | None:
    """What of a request's Accept-Encoding we can do; None for neither.

    >>> choose_encoding("gzip, deflate, br"), choose_encoding("gzip;q=0"), choose_encoding("GZIP;q=0.5")
    ('br', None, 'gzip')
    """
    quality: dict[str, float] = {}
    for item in accepted.split(",")[:20]:
        name, _, rest = item.strip().lower().partition(";")
        value = rest.strip().removeprefix("q=") if rest.strip().startswith("q=") else "1"
        try:
            quality[name.strip()] = float(value)
        except ValueError:
            quality[name.strip()] = 0.0
    possible = ("br", "gzip") if _brotli() is not None else ("gzip",)
    return next((name for name in possible if quality.get(name, 0.0) > 0), None)


def _brotli() -> Any:
    """What makes codecs, once Arrow has been loaded; None before, and where it was built without brotli."""
    # Another thread may be just loading it.
    codec = getattr(sys.modules.get("pyarrow"), "Codec", None)
    return codec if codec is not None and codec.is_available("brotli") else None


def _compress(content: bytes, encoding: str, level: int) -> bytes:
    if encoding == "br" and (codec := _brotli()) is not None:
        compressed: bytes = codec("brotli", compression_level=level).compress(content, asbytes=True)
        return compressed
    return gzip.compress(content, _GZIP_LEVEL, mtime=0)


def compress_answers(server: Flask, *, files: tuple[str, ...]) -> None:
    """Have every answer of `server` compressed.

    Args:
        files: beginnings of the paths at which files lie that never change while the server runs.
    """
    compression = Compression()

    @server.after_request
    def compress(response: Response) -> Response:
        return compression.apply(
            response,
            accepted=request.headers.get("Accept-Encoding", ""),
            path=request.full_path,
            is_file=request.path.startswith(files),
        )
