"""Folders of models that read images, with settings that do not fit: each is named in one line."""

import json
import shutil

import pytest
from lab.tiny_media import tiny_media_model

from burnish.errors import UserError
from burnish.lm.folder import load_model

pytest.importorskip("PIL.Image", reason="images need pillow")


@pytest.fixture(scope="session")
def smolvlm(tmp_path_factory):
    return tiny_media_model(tmp_path_factory.mktemp("smolvlm"), "smolvlm")


@pytest.mark.parametrize(
    ("file", "part", "setting", "message"),
    [
        ("config", "", {"text_config": 5}, "cannot be loaded by transformers: .*text_config.* 5 "),
        ("config", "text_config", {"hidden_size": 64}, "weights have other sizes than its config"),
        ("config", "text_config", {"num_hidden_layers": 3}, r"asks for weight .*layers\.2\."),
        (
            "processor_config",
            "image_processor",
            {"size": {"longest_edge": 0}},
            "a small image or sound was tried: SmolVLMProcessor cannot read it: size",
        ),
    ],
    ids=["config", "sizes", "missing", "processor"],
)
def test_settings_that_do_not_fit_are_named(smolvlm, tmp_path, file, part, setting, message):
    folder = shutil.copytree(smolvlm, tmp_path / "model")
    path = folder / f"{file}.json"
    settings = json.loads(path.read_text())
    (settings[part] if part else settings).update(setting)
    path.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=message) as refused:
        load_model(folder, device="cpu")
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)
