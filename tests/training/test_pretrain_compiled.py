import sys

from burnish.lm import load_model
from burnish.training.algorithms.pretrain import compile_layers


def test_another_model_stays_as_it_is(caplog):
    assert not compile_layers(object())
    assert "not the built-in decoder; it runs as it is" in caplog.text


def test_without_a_compiler_the_model_stays_as_it_is(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", None)
    module = load_model("tiny", device="cpu").module
    assert not compile_layers(module)
    assert "train.compile: no compiler here" in caplog.text
    assert all(layer._compiled_call_impl is None for layer in module.model.layers)
