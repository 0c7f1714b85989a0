"""Images and sounds, opened safely: what a file really is, its limits, one line for what is wrong."""

from burnish.media.images import ImageInfo, image_info, open_image
from burnish.media.kinds import media_type_of
from burnish.media.samples import resample
from burnish.media.sound_writing import encode_sound, sound_writer, write_sound
from burnish.media.sounds import Sound, SoundInfo, read_sound, sound_info, stream_sound
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
    "sound_writer",
    "stream_sound",
    "write_sound",
]
