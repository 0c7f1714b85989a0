"""Images and sounds, opened safely: what a file really is, its limits, one line for what is wrong."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.media.images import (
        ImageInfo as ImageInfo,
        image_info as image_info,
        open_image as open_image,
    )
    from burnish.media.kinds import media_type_of as media_type_of
    from burnish.media.sound_writing import (
        encode_sound as encode_sound,
        sound_writer as sound_writer,
        write_sound as write_sound,
    )
    from burnish.media.sounds import (
        Sound as Sound,
        SoundInfo as SoundInfo,
        read_sound as read_sound,
        resample as resample,
        sound_info as sound_info,
        stream_sound as stream_sound,
    )
    from burnish.media.waveform import SoundPicture as SoundPicture, sound_picture as sound_picture

__getattr__, __dir__ = lazy_exports(__name__)
