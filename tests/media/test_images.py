"""Images are what their bytes say, upright and in RGB; bombs and foreign files get one line."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest

pytest.importorskip("PIL", reason="pillow is not installed")

import hostile_files as files
from PIL import Image

from burnish.errors import UserError
from burnish.media import image_info, open_image

RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_each_kind_by_its_bytes_whatever_its_name(kind, tmp_path):
    data = files.encoded(files.picture(color=RED), kind)
    path = tmp_path / "picture.svg"
    path.write_bytes(data)
    assert image_info(path) == (f"image/{kind.lower()}", 40, 30)
    found = open_image(path)
    assert (found.mode, found.size) == ("RGB", (40, 30))
    assert max(abs(a - b) for a, b in zip(found.getpixel((9, 9)), RED, strict=True)) < 8


@pytest.mark.parametrize(
    ("mode", "color", "kind", "seen"),
    [
        ("RGBA", (255, 0, 0, 0), "PNG", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), "PNG", RED),
        ("LA", (0, 0), "PNG", (255, 255, 255)),
        ("1", 1, "PNG", (255, 255, 255)),
        ("L", 100, "PNG", (100, 100, 100)),
        ("I;16", 0x8000, "PNG", (128, 128, 128)),
        ("CMYK", (0, 0, 0, 0), "JPEG", (255, 255, 255)),
    ],
)
def test_every_mode_becomes_rgb_as_a_person_sees_it(mode, color, kind, seen):
    found = open_image(files.encoded(files.picture(mode, color=color), kind))
    assert (found.mode, found.getpixel((5, 5))) == ("RGB", seen)


def test_a_transparent_colour_of_a_palette_is_white():
    image = files.picture("P")
    image.putpalette([255, 0, 0] * 256)
    assert open_image(files.encoded(image, transparency=0)).getpixel((0, 0)) == (255, 255, 255)


def png(size, depth, colour, lines, clear=b"", interlaced=0):
    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlaced)
    packed = zlib.compress(lines)
    cuts = [packed[:5], packed[5:]]
    chunks = [chunk(b"IHDR", head), chunk(b"tRNS", clear) if clear else b""]
    chunks += [chunk(b"IDAT", cut) for cut in cuts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("depth", "colour", "values", "clear", "seen"),
    [
        (16, 0, struct.pack(">3H", 0, 40_000, 256), struct.pack(">H", 0), [255, 156, 1]),
        (16, 0, struct.pack(">3H", 0x1234, 0x1235, 0x1334), b"\x12\x34", [255, 18, 19]),
        (2, 0, bytes([0b00011000]), b"\0\1", [0, 255, 170]),
        (4, 0, bytes([0x0F, 0xA0]), b"\0\n", [0, 255, 255]),
        (1, 0, bytes([0b01000000]), b"\0\0", [255, 255, 255]),
        (8, 0, bytes([0, 200, 7]), b"\0\7", [0, 200, 255]),
        (16, 2, struct.pack(">9H", 0x1234, 0, 0, *[0x3400] * 3, *[0] * 3),
         struct.pack(">3H", 0x1234, 0, 0), [255, 0x34, 0]),
    ],
)  # fmt: skip
def test_a_transparent_colour_is_white_at_every_depth(depth, colour, values, clear, seen):
    found = open_image(png((3, 1), depth, colour, b"\0" + values, clear))
    assert [found.getpixel((x, 0)) for x in range(3)] == [(v, v, v) for v in seen]


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))  # fmt: skip


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (8, 8), (13, 9), (700, 500)])
@pytest.mark.parametrize(
    ("depth", "colour", "values"), [(8, 2, 3), (1, 0, 1), (2, 0, 1), (16, 6, 4)]
)
@pytest.mark.parametrize("interlaced", [0, 1])
def test_pixel_data_that_end_early_are_refused(size, depth, colour, values, interlaced):
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    lines = 0
    for left, top, across, down in passes:
        wide, high = len(range(left, size[0], across)), len(range(top, size[1], down))
        lines += high * (1 + -(-wide * values * depth // 8)) if wide else 0
    whole = png(size, depth, colour, bytes(lines), interlaced=interlaced)
    assert open_image(whole).size == size
    assert (
        open_image(png(size, depth, colour, bytes(lines + 9), interlaced=interlaced)).size == size
    )
    with pytest.raises(UserError, match=f"end after {lines - 1:,} of {lines:,} bytes"):
        open_image(png(size, depth, colour, bytes(lines - 1), interlaced=interlaced))


def test_a_png_of_which_nearly_all_is_missing_is_refused_without_memory():
    data = png((7_000, 7_000), 8, 2, bytes(21_001))
    tracemalloc.start()
    with pytest.raises(UserError, match="21,001 of 147,007,000"):
        open_image(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("turn", range(1, 9))
def test_the_orientation_of_a_photograph_is_applied(turn):
    upright = Image.new("RGB", (32, 16), BLUE)
    upright.paste(RED, (0, 0, 16, 8))
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    lying = upright.transpose(Image.Transpose(back[turn])) if turn > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = turn
    found = open_image(files.encoded(lying, "PNG", exif=exif))
    assert found.size == (32, 16)
    assert [found.getpixel(place) for place in ((2, 2), (30, 2), (2, 14))] == [RED, BLUE, BLUE]


HOSTILE = {
    "bomb": (lambda: files.png_of(50_000, 50_000), "50,000 x 50,000 pixels; expected"),
    "beyond pillow's own limit": (lambda: files.png_of(10_000, 10_000), "100,000,000|10,000 x"),
    "long side": (lambda: files.png_of(40_000, 1), "32,767 a side"),
    "no pixel": (lambda: files.png_of(0, 10), "PNG|pixels"),
    "animation": (lambda: files.gif_of(2), "an animation"),
    "many frames": (lambda: files.gif_of(100_000), "an animation"),
    "text bomb": (files.text_bomb, "PNG"),
    "svg": (lambda: files.SVG, "SVG, XML or HTML text; expected a PNG"),
    "svg with a comment": (lambda: b"\xef\xbb\xbf\n<!-- -->" + files.SVG, "SVG, XML or HTML"),
    "bmp": (lambda: files.encoded(files.picture(), "BMP"), "a BMP image"),
    "tiff": (lambda: files.encoded(files.picture(), "TIFF"), "a TIFF image"),
    "pdf": (lambda: b"%PDF-1.7", "a PDF"),
    "sound": (lambda: b"RIFF\0\0\0\0WAVE", r"WAV \(audio/wav\)"),
    "nothing": (lambda: b"", "an empty file"),
    "cut header": (lambda: files.encoded(files.picture())[:20], "PNG"),
    "no data": (lambda: files.png_of(500, 500), "cut off or damaged"),
    "cut png": (lambda: files.encoded(noisy(), "PNG")[:-400], "cut off or damaged"),
    "cut jpeg": (lambda: files.encoded(noisy(), "JPEG")[:-400], "cut off or damaged"),
    "cut webp": (lambda: files.encoded(noisy(), "WEBP")[:-400], "WebP"),
    "git lfs": (lambda: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
}


def noisy():
    return Image.effect_noise((64, 64), 90).convert("RGB")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_get_one_line_and_little_memory(name, recwarn):
    make, line = HOSTILE[name]
    data = make()
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=line) as raised:
            open_image(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(raised.value)
    assert peak < 30_000_000
    assert not recwarn.list


@pytest.mark.parametrize("name", ["png and zip", "jpeg and html", "png and html"])
def test_a_polyglot_is_only_its_picture(name):
    assert open_image(files.polyglots()[name]).size == (40, 30)


XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-'
    b'syntax-ns#"><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" '
    b'tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)


@pytest.mark.parametrize(
    ("kind", "how", "size"),
    [
        ("JPEG", "exif", (30, 40)),
        ("PNG", "exif", (30, 40)),
        ("WEBP", "exif", (40, 30)),
        ("JPEG", "xmp", (40, 30)),
        ("WEBP", "xmp", (40, 30)),
    ],
)
def test_a_picture_is_turned_where_a_browser_turns_it(kind, how, size):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = files.encoded(
        files.picture(), kind, **({"exif": exif} if how == "exif" else {"xmp": XMP})
    )
    assert open_image(data).size == size
