"""What is kept of processed images, and whether a file's head tells an image's size."""

import io

import numpy as np
import pytest
from lab.tiny_media import tiny_media_model

from burnish.errors import UserError
from burnish.lm.media_processor import MediaProcessor
from burnish.store.blobs import shared_blobs

Image = pytest.importorskip("PIL.Image", reason="images need pillow")
PngInfo = pytest.importorskip("PIL.PngImagePlugin", reason="images need pillow").PngInfo

XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)


@pytest.fixture(scope="session")
def smolvlm(tmp_path_factory):
    return tiny_media_model(tmp_path_factory.mktemp("smolvlm"), "smolvlm")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def stored(seed, kind="PNG", size=(30, 64), **options):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return shared_blobs().add(file.getvalue())


def exif():
    notes = Image.Exif()
    notes[0x0112] = 6
    return {"exif": notes.tobytes()}


def png_xmp():
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", XMP)
    return {"pnginfo": info}


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_turned_image_has_the_tokens_of_its_upright_size(smolvlm, kind):
    media = MediaProcessor.from_folder(smolvlm)
    media.expansion(stored(0, kind))  # the same width and height in the file, and not turned
    turned = stored(1, kind, **exif())
    upright = stored(2, size=(64, 30))
    assert media.expansion(turned) == media.expansion(upright) != media.expansion(stored(0, kind))
    assert media.tensors([[turned]], "cpu", None)  # refused if its tokens were others


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("WEBP", exif),
        ("PNG", png_xmp),
        ("JPEG", lambda: {"xmp": XMP.encode()}),
        ("WEBP", lambda: {"xmp": XMP.encode()}),
    ],
    ids=["webp-exif", "png-xmp", "jpeg-xmp", "webp-xmp"],
)
def test_notes_that_turn_no_picture_in_a_browser_turn_none_here(smolvlm, kind, note):
    media = MediaProcessor.from_folder(smolvlm)
    noted = stored(1, kind, **note())
    assert media.expansion(noted) == media.expansion(stored(0, kind))
    assert media.tensors([[noted]], "cpu", None)


def test_an_image_with_other_tokens_than_its_size_promised_is_refused_each_time(smolvlm):
    media = MediaProcessor.from_folder(smolvlm)
    first, second = stored(0), stored(1)
    ids = media.expansion(first)
    media._sizes[(30, 64)] = ids + ids
    assert media.expansion(second) == ids + ids
    for _ in range(2):
        with pytest.raises(UserError, match="makes other tokens of images of one size"):
            media.tensors([[second]], "cpu", None)
    assert media.expansion(second) == ids + ids


def test_expansions_of_like_images_are_kept_once(smolvlm):
    media = MediaProcessor.from_folder(smolvlm)
    parts = [stored(seed) for seed in range(3)]
    media.tensors([parts], "cpu", None)
    assert len({id(media.expansion(part)) for part in parts}) == 1
