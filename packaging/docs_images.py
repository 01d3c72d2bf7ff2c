"""Makes docs/images/pages: every page of the dashboard in two sizes, light and dark, of recorded samples.

    make docs-images

Needs Chromium.  The pictures are PNG files with a palette of 256 colours, which is what pages of text and flat charts need.
"""

import argparse
import base64
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from tlkit.collector.reports.palette import COLOURS

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLES = REPOSITORY / "samples" / "traces"
FLAGS = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--force-color-profile=srgb"),
]
#: Size in CSS pixels, and how large a pixel of the picture is.
SIZES = {"desktop": ((1280, 800), 0.75), "phone": ((390, 844), 1.0)}
PAGES = ("verdict", "steps?step=10", "ranks", "communication", "data", "devices", "timeline", "compare")
MAX_HEIGHT = 1800
#: Decodes a PNG to width, height and pixels.
DECODE = """async encoded => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${encoded}`)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height), g = canvas.getContext("2d");
  g.drawImage(image, 0, 0);
  const pixels = g.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let at = 0; at < pixels.length; at += 32768) text += String.fromCharCode(...pixels.subarray(at, at + 32768));
  return [image.width, image.height, btoa(text)];
}"""
MAX_COLOURS = 256


def main() -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images" / "pages")
    out: Path = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tlkit.dashboard.cli",
        str(SAMPLES / "slow-rank"),
        "--compare",
        str(SAMPLES / "healthy"),
    ]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)  # noqa: S603
    assert server.stdout is not None
    found = re.search(r"http://\S+", server.stdout.readline())
    assert found is not None
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for size, ((width, height), scale) in SIZES.items():
                for theme in ("light", "dark"):
                    context = browser.new_context(
                        viewport={"width": width, "height": height},
                        color_scheme="dark" if theme == "dark" else "light",
                        device_scale_factor=scale,
                    )
                    page, decoder = context.new_page(), context.new_page()
                    for name in PAGES:
                        path = out / f"{name.partition('?')[0]}-{size}-{theme}.png"
                        write_png(path, picture_of(page, decoder, f"{found[0].rstrip('/')}/{name}"))
                        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")  # noqa: T201
                    context.close()
            browser.close()
    finally:
        server.terminate()
    return 0


def picture_of(page: Page, decoder: Page, address: str) -> np.ndarray:
    """The page from its top: uint8[height, width, 3].

    Args:
        decoder: an empty page, whose browser decodes the picture.
    """
    page.goto(address)
    drawn = "#timeline[data-painted]" if "/timeline" in address else "#page [data-svg] svg"
    page.wait_for_selector(drawn, timeout=60_000)
    if "/timeline" in address:
        named = "pane => pane.unnamed && pane.unnamed.every(number => pane.names.get(number))"
        page.wait_for_function(f"() => window.tlkit.timeline.panes.every({named})")
    page.wait_for_timeout(500)
    tall = min(page.evaluate("document.documentElement.scrollHeight"), MAX_HEIGHT)
    wide = page.viewport_size["width"] if page.viewport_size else 0
    png = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": wide, "height": tall})
    width, height, encoded = decoder.evaluate(DECODE, base64.b64encode(png).decode())
    pixels = np.frombuffer(base64.b64decode(encoded), np.uint8).reshape(height, width, 4)
    return pixels[:, :, :3]


def write_png(path: Path, pixels: np.ndarray) -> None:
    """A PNG with a palette: those of charts and the colours that come most often, all others as the nearest of them."""
    height, width, _ = pixels.shape
    codes = (pixels.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)).ravel()
    colours, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    of_charts = np.array([int(colour[1:], 16) for colour in COLOURS.values()], np.uint32)
    often = colours[np.argsort(-counts, kind="stable")]
    palette = np.concatenate((of_charts, often[~np.isin(often, of_charts)]))[:MAX_COLOURS]

    def channels(of: np.ndarray) -> np.ndarray:
        return np.stack((of >> 16, of >> 8 & 255, of & 255), axis=-1).astype(np.int32)

    chosen, every = channels(palette), channels(colours)
    nearest = np.concatenate(
        [
            np.abs(part[:, None] - chosen[None]).sum(axis=2).argmin(axis=1)
            for part in np.array_split(every, 1 + len(every) // 4096)
        ]
    )
    indices = nearest[inverse].reshape(height, width).astype(np.uint8)
    rows = np.concatenate((np.zeros((height, 1), np.uint8), indices), axis=1)
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", chosen.astype(np.uint8).tobytes()),
            (b"IDAT", zlib.compress(rows.tobytes(), 9)),
            (b"IEND", b""),
        ):
            file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))


if __name__ == "__main__":
    sys.exit(main())
