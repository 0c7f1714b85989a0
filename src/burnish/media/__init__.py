"""Images and sounds, opened safely: what a file really is, its limits, one line for what is wrong."""

from burnish.media.images import ImageInfo, image_info, open_image
from burnish.media.kinds import media_type_of
from burnish.media.sounds import (
    Sound,
    SoundInfo,
    encode_sound,
    read_sound,
    resample,
    sound_info,
    stream_sound,
    write_sound,
)
from burnish.media.waveform import SoundPicture, sound_picture

__all__ = [
    "ImageInfo",
    "Sound",
    "SoundInfo",
    "SoundPicture",
    "encode_sound",
    "image_info",
    "media_type_of",
    "open_image",
    "read_sound",
    "resample",
    "sound_info",
    "sound_picture",
    "stream_sound",
    "write_sound",
]
