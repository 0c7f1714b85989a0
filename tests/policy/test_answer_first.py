import math

import pytest
import torch
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.lm import load_model
from burnish.policy.answer_first import answer_ids, answer_kd, first_token_grade, label_tokens
from burnish.policy.auxiliary import mode_balanced_loss, sft_nll


def test_a_grade_by_hand():
    logits = torch.full((9,), 50.0, dtype=torch.float64)  # other tokens are likelier by far
    logits[[7, 2, 4]] = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64).log()
    found = first_token_grade(logits, [7, 2, 4])
    assert found.grade.item() == 1
    torch.testing.assert_close(found.probabilities, torch.tensor([0.25, 0.5, 0.25]).double())
    assert found.score.item() == pytest.approx(0.25 * 0 + 0.5 * 1 + 0.25 * 2)


values = st.floats(-5, 5)


@given(st.lists(st.lists(values, min_size=6, max_size=6), min_size=1, max_size=4), values)
def test_rows_are_graded_alone_and_constants_and_other_tokens_do_not_matter(rows, shift):
    labels = [1, 3, 5]
    logits = torch.tensor(rows, dtype=torch.float64)
    together = first_token_grade(logits, labels)
    other = logits + shift
    other[:, [0, 2, 4]] = 99.0
    moved = first_token_grade(other, torch.tensor(labels))
    torch.testing.assert_close(moved.probabilities, together.probabilities)
    torch.testing.assert_close(moved.score, together.score)
    for i, row in enumerate(rows):
        alone = first_token_grade(row, labels)
        assert alone.grade.item() == together.grade[i].item()
        torch.testing.assert_close(alone.probabilities, together.probabilities[i])


def test_a_forbidden_label_has_probability_zero():
    assert first_token_grade([0.0, -math.inf], [0, 1]).probabilities.tolist() == [1.0, 0.0]


def test_distillation_by_hand():
    # Student (1/2, 1/2) at any temperature; teacher (4/5, 1/5) tempered by 2 is (2/3, 1/3).
    wanted = 4 * (2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3))
    assert answer_kd([0.0, 0.0], [0.8, 0.2], 2.0).item() == pytest.approx(wanted)
    assert answer_kd([0.0, 0.0], [0.8, 0.2]).item() == pytest.approx(wanted)
    rows = answer_kd([[0.0, 0.0]] * 2, [[0.8, 0.2], [0.5, 0.5]], 2.0, reduction="none")
    assert rows.tolist() == pytest.approx([wanted, 0.0], abs=1e-12)
    both = answer_kd([[0.0, 0.0]] * 2, [[0.8, 0.2], [0.5, 0.5]], 2.0)
    assert both.item() == pytest.approx(wanted / 2)


@given(
    st.lists(values, min_size=4, max_size=4),
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    st.floats(0.5, 4),
)
def test_distillation_is_zero_for_equal_distributions_only(logits, weights, temperature):
    student = torch.tensor(logits, dtype=torch.float64)
    teacher = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    plain = (teacher * (teacher.log() - student.log_softmax(-1))).sum()
    assert answer_kd(student, teacher, 1.0).item() == pytest.approx(plain.item(), abs=1e-9)
    assert answer_kd(student, student.softmax(-1), temperature).item() == pytest.approx(0, abs=1e-7)
    gap = (student.softmax(-1) - teacher).abs().max().item()
    if gap > 1e-3:
        assert answer_kd(student, teacher, temperature).item() > 0


def test_a_teacher_that_is_certain_gives_finite_losses_and_gradients():
    student = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    loss = answer_kd(student, [1.0, 0.0, 0.0], 2.0)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()
    assert student.grad[0] < 0 < student.grad[1]


class Words:
    """A tokenizer of words that puts a mark before a text that stands alone."""

    pieces = ("▁", "yes", "no", ":", "may", "be", "<unk>", ":no")

    def encode(self, text):
        rest, ids = (text, []) if text.startswith(":") else (f"▁{text}", [])
        while rest:
            longest = max((p for p in self.pieces if rest.startswith(p)), key=len, default="")
            ids.append(self.pieces.index(longest or "<unk>"))
            rest = rest[len(longest) or 1 :]
        return ids

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids).replace("▁", " ")


def test_labels_are_looked_up_where_an_answer_begins():
    assert label_tokens(Words(), ["yes", "be"], before=":") == (1, 5)


def test_an_answer_that_melts_into_the_prompt_is_encoded_alone():
    assert answer_ids(Words(), "yes", ":") == (1,)
    assert answer_ids(Words(), "no", ":") == (0, 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["yes", "maybe"], "'maybe' is not one item of the model's vocabulary but 'may', 'be'"),
        (["yes", ""], "'' is not one item of the model's vocabulary but nothing"),
        (["yes", "yes"], "'yes' and 'yes' are the same item"),
        (["yes"], "at least two grades"),
    ],
)
def test_labels_that_one_step_cannot_say_are_refused(labels, message):
    with pytest.raises(UserError, match=message):
        label_tokens(Words(), labels, before=":")


def test_labels_of_a_real_tokenizer():
    tokenizer = load_model("tiny", device="cpu").tokenizer
    ids = label_tokens(tokenizer, ["0", "1", "2", "3"], before="<|im_start|>assistant\n")
    assert [tokenizer.decode([i]) for i in ids] == ["0", "1", "2", "3"]


LOGP = [[-1.0, -2.0, math.nan], [-3.0, -math.inf, math.inf]]
MASK = [[1, 1, 0], [1, 0, 0]]


def test_the_mean_is_over_unmasked_tokens():
    assert sft_nll(LOGP, MASK).item() == 2.0
    assert sft_nll(LOGP, MASK, tokens=12).item() == 0.5
    assert sft_nll(LOGP, [[0] * 3] * 2).item() == 0.0
    with pytest.raises(ValueError, match="mask: got shape"):
        sft_nll(LOGP, [[1, 1]])


def test_the_balanced_loss_by_hand():
    loss = mode_balanced_loss(torch.tensor(0.25), LOGP, MASK, 0.1)
    assert loss.item() == pytest.approx(0.25 + 0.1 * 2.0)
    assert mode_balanced_loss(0.25, LOGP, MASK, lam=1.0).item() == 2.25
    with pytest.raises(ValueError, match="lam"):
        mode_balanced_loss(0.25, LOGP, MASK, -1.0)


@pytest.mark.parametrize(("mask", "lam"), [(MASK, 0.0), ([[0] * 3] * 2, 0.5)])
def test_without_weight_or_experts_the_policy_loss_comes_back_itself(mask, lam):
    rl_loss = torch.tensor(0.1, dtype=torch.float32, requires_grad=True)
    assert mode_balanced_loss(rl_loss, LOGP, mask, lam) is rl_loss


def test_its_gradient_is_the_sum_of_both_and_masked_tokens_have_none():
    theta = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta.requires_grad_(True)
    mask = torch.tensor([[1, 0, 1, 1, 0]])

    def parts():
        return theta.square().sum(), (theta.sin() - 1)[None]

    def gradient(loss):
        return torch.autograd.grad(loss, theta)[0]

    rl_loss, logp = parts()
    alone = gradient(sft_nll(logp, mask))
    assert (alone[[1, 4]] == 0).all()
    wanted = gradient(parts()[0]) + 0.3 * alone
    rl_loss, logp = parts()
    torch.testing.assert_close(gradient(mode_balanced_loss(rl_loss, logp, mask, 0.3)), wanted)

    def numeric(theta):
        return mode_balanced_loss(theta.square().sum(), (theta.sin() - 1)[None], mask, 0.3)

    assert torch.autograd.gradcheck(numeric, (theta,))
