"""The installed TRL and verl, for tests that run their own functions beside ours."""

from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session")
def trainer():
    """TRL's GRPOTrainer as a class; its methods are called on objects that hold settings alone."""
    if find_spec("trl") is None:
        pytest.skip("needs trl (a dev dependency)")
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


@pytest.fixture(scope="session")
def algorithms():
    """verl's module of advantages, losses and KL estimates."""
    if find_spec("verl") is None or find_spec("ray") is None:
        pytest.skip("needs verl and ray (make test installs them)")
    from verl.trainer.ppo import core_algos

    return core_algos
