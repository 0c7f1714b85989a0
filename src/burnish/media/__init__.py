"""Images and sounds, opened safely: what a file really is, its limits, one line for what is wrong."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.media.images import ImageInfo as ImageInfo
    from burnish.media.images import image_info as image_info
    from burnish.media.images import open_image as open_image
    from burnish.media.kinds import media_type_of as media_type_of
    from burnish.media.sound_writing import encode_sound as encode_sound
    from burnish.media.sound_writing import sound_writer as sound_writer
    from burnish.media.sound_writing import write_sound as write_sound
    from burnish.media.sounds import Sound as Sound
    from burnish.media.sounds import SoundInfo as SoundInfo
    from burnish.media.sounds import read_sound as read_sound
    from burnish.media.sounds import resample as resample
    from burnish.media.sounds import sound_info as sound_info
    from burnish.media.sounds import stream_sound as stream_sound
    from burnish.media.waveform import SoundPicture as SoundPicture
    from burnish.media.waveform import sound_picture as sound_picture

__getattr__, __dir__ = lazy_exports(__name__)
