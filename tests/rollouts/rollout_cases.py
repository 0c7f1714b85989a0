"""Tokenizers of several chat template families, scripted models and small environments."""

from collections.abc import Callable, Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, pre_tokenizers

from burnish.lm.base import Completion, Sampling
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Author, Finish, Message, Task, Trajectory

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOL = (
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = (  # Qwen 2.5 and Hermes: tools in the system message, results in user turns
    "{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% endif %}{% if tools %}{{ '\n<tools>' }}{% for t in tools %}{{ '\n' + (t | tojson) }}"
    '{% endfor %}{{ \'\n</tools>\n<tool_call>\n{"name": <name>, "arguments": <json>}\n'
    "</tool_call>' }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) "
    "or (m.role == 'system' and not loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant' }}{% if m.content %}"
    "{{ '\n' + m.content }}{% endif %}{% for c in m.tool_calls %}{% set c = c.function %}"
    '{{ \'\n<tool_call>\n{"name": "\' + c.name + \'", "arguments": \' + (c.arguments | tojson)'
    " + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}"
    "{% endif %}{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3 = (  # drops the thoughts of earlier turns once the user speaks again
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}"
    "{{ '<|im_start|>assistant\n' + m.content.split('</think>')[-1].strip() + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() "
    "+ ' [/INST]' }}{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)
LLAMA3 = (
    "{{ bos_token }}{% if tools %}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{% for t in tools %}{{ (t | tojson) + '\n' }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
    '{{ \'<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "\' + c.name + '
    "'\", \"parameters\": ' + (c.arguments | tojson) + '}<|eot_id|>' }}"
    "{% elif m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + "
    "(m.content | tojson) + '<|eot_id|>' }}{% else %}{{ '<|start_header_id|>' + m.role + "
    "'<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + "
    "m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + '\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + eos_token }}"
    "{% else %}{{ '<｜User｜>' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)
FAMILIES: dict[str, tuple[str | None, str, tuple[str, ...]]] = {
    # template, the token that ends a turn, other special tokens
    "chatml": (CHATML, "<|im_end|>", ("<|im_start|>",)),
    "smollm2": (SMOL, "<|im_end|>", ("<|im_start|>",)),
    "qwen2.5": (QWEN, "<|im_end|>", ("<|im_start|>",)),
    "qwen3": (QWEN3, "<|im_end|>", ("<|im_start|>",)),
    "llama2": (LLAMA2, "</s>", ("<s>",)),
    "llama3": (LLAMA3, "<|eot_id|>", ("<s>", "<|start_header_id|>", "<|end_header_id|>")),
    "gemma": (GEMMA, "<end_of_turn>", ("<s>", "<start_of_turn>")),
    "phi": (PHI, "<|end|>", ("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>")),
    "deepseek": (DEEPSEEK, "<｜end▁of▁sentence｜>", ("<s>", "<｜User｜>", "<｜Assistant｜>")),
    "none": (None, "</s>", ()),
}


@cache
def tokenizer(family: str = "chatml", template: str | None = None) -> Tokenizer:
    """A byte-level tokenizer with a family's special tokens and chat template."""
    source, end, specials = FAMILIES[family]
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    added = [AddedToken(t, special=True, normalized=False) for t in (end, *specials)]
    backend.add_special_tokens(added)
    backend.add_tokens([AddedToken(t, normalized=False) for t in ("<tool_call>", "</tool_call>")])
    named = {"eos_token": end, "bos_token": "<s>" if "<s>" in specials else ""}
    return Tokenizer(backend, special_tokens=named, chat_template=template or source)


class Speaker:
    """A scripted model that ends its turns with the end token, as real ones do."""

    def __init__(
        self,
        script: Sequence[str] | Callable[[list[int], Sampling], str],
        family: str = "chatml",
        *,
        template: str | None = None,
        ends: bool = True,
    ) -> None:
        self.script, self.ends, self.said = script, ends, 0
        self.tokenizer = tokenizer(family, template)
        self.calls: list[tuple[list[int], Sampling]] = []

    @property
    def name(self) -> str:
        return "speaker"

    async def sample(self, prompt, sampling: Sampling) -> list[Completion]:
        self.calls.append((list(prompt), sampling))
        return [self._one(list(prompt), sampling) for _ in range(sampling.n)]

    async def score(self, prompt_ids, response_ids, *, top_k: int = 0):
        raise NotImplementedError

    def _one(self, prompt: list[int], sampling: Sampling) -> Completion:
        if callable(self.script):
            text = self.script(prompt, sampling)
        else:
            text = self.script[self.said]
            self.said += 1
        end = self.tokenizer.eos_ids[:1] if self.ends else ()
        ids = (*self.tokenizer.encode(text), *end)[: sampling.max_tokens]
        is_cut = len(ids) < len(self.tokenizer.encode(text))
        return Completion(
            self.tokenizer.decode(ids),
            token_ids=ids,
            logprobs=tuple(-0.5 for _ in ids),
            finish=Finish.LENGTH if is_cut else Finish.STOP,
            prompt_ids=tuple(prompt),
        )


def a_task(prompt: str = "q?", **fields) -> Task:
    return Task("t1", (Message("user", prompt),), fields)


def assert_masked(trajectory: Trajectory) -> None:
    """Only what the model wrote is trained."""
    for span in trajectory.spans:
        assert span.trainable == (span.author is Author.MODEL)
        assert bool(span.logprobs) == span.trainable
    assert sum(trajectory.loss_mask) == len(trajectory.logprobs) == trajectory.trained_tokens


def shown(trajectory: Trajectory, family: str = "chatml") -> list[tuple[str, str]]:
    """Author and text of every span."""
    decode = tokenizer(family).decode
    return [(s.author.value, decode(s.token_ids, skip_special=False)) for s in trajectory.spans]
