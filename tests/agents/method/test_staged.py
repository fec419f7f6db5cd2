"""The staged schedule: what is trained when, from which states, and how it goes on after a stop."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seeupo_gym import SeeUPO, make_vec
from seeupo_gym.agents.method.settings import StageSettings
from seeupo_gym.agents.method.staged import Stages
from seeupo_gym.agents.policies.roll_in import act_in_stage
from seeupo_gym.baselines import get_algorithm
from seeupo_gym.benchmark.evaluation import evaluate, stage_note
from seeupo_gym.benchmark.jobs import Job, run_job, save_model
from seeupo_gym.cli import main

TRAP = "seeupo_gym/CoordinationTrap-v0"
TOOLS = "seeupo_gym/ToolChain-v0"
# One iteration: 4 groups of 4 episodes.
SMALL = dict(n_groups=4, group_size=4, schedule="staged")


def trap_model(turns=3, seed=0, **settings):
    return SeeUPO("MlpPolicy", make_vec(TRAP, 16, turns=turns), seed=seed, **(SMALL | settings))


def snapshot(model):
    return [[p.detach().clone() for p in model.policy.turn_parameters(t)] for t in range(model.n_turns)]


def same(a, b):
    return [all(th.equal(p, q) for p, q in zip(x, y, strict=True)) for x, y in zip(a, b, strict=True)]


class Recorder(BaseCallback):
    """Keeps the stage and the parameters of every turn at the start of each rollout; stops after a number of steps."""

    def __init__(self, stop_at=np.inf):
        super().__init__()
        self.stages, self.snapshots, self.steps, self.stop_at = [], [], [], stop_at

    def _on_rollout_start(self):
        self.stages.append(self.model.stages.turn)
        self.snapshots.append(snapshot(self.model))
        self.steps.append(self.model.num_timesteps)

    def _on_step(self):
        return self.num_timesteps < self.stop_at


def test_turns_are_trained_from_the_last_to_the_first_and_frozen():
    model, recorder = trap_model(), Recorder()
    model.learn(48 * 9, callback=recorder)  # an iteration takes 16 episodes of 3 turns
    assert recorder.stages == [2, 2, 2, 1, 1, 1, 0, 0, 0]
    for stage, before, after in zip(
        recorder.stages, recorder.snapshots, [*recorder.snapshots[1:], snapshot(model)], strict=True
    ):
        assert [turn for turn, kept in enumerate(same(before, after)) if not kept] in ([stage], [])
    assert same(recorder.snapshots[0], snapshot(model)) == [False, False, False]
    assert model.stages.finished
    assert model.num_timesteps == 48 * 9, "as many steps as a sweep takes"


def test_an_iteration_acts_uniformly_before_sampled_at_and_greedily_after_the_trained_turn():
    model = trap_model(turns=3)
    for network in model.policy.turns:  # all turn policies prefer arm 2
        network.action_net.bias.data += th.tensor([0.0, 0.0, 1.0, 0.0])
    stages = Stages(StageSettings(), n_turns=3, start=0, total=300)
    stages.turn = 1
    n = 4000
    obs, generator = th.zeros(n, 7), th.Generator().manual_seed(0)
    shares = []
    for turn in range(3):
        actions, log_probs = act_in_stage(model.policy, stages, obs, np.full(n, turn), generator, None, np.arange(n))
        shares.append(np.bincount(actions.numpy(), minlength=4) / n)
        assert log_probs.isnan().all() if turn == 0 else log_probs.isfinite().all()
    sampled = np.array([1, 1, np.e, 1]) / (3 + np.e)
    np.testing.assert_allclose(shares[0], 0.25, atol=0.03)
    np.testing.assert_allclose(shares[1], sampled, atol=0.03)
    np.testing.assert_array_equal(shares[2], [0, 0, 1, 0])
    # Rows at different turns at once give the same, each in its place.
    turns = np.tile([2, 0, 1], n // 3)
    actions, log_probs = act_in_stage(model.policy, stages, obs[: len(turns)], turns, generator, None, np.arange(n))
    assert (actions.numpy()[turns == 2] == 2).all()
    np.testing.assert_array_equal(log_probs.isnan().numpy(), turns == 0)
    assert np.unique(actions.numpy()[turns == 0]).size == 4


@pytest.mark.parametrize("roll_in", [0.0, 0.3])
def test_roll_in_mixes_the_current_policy_with_uniform_actions(roll_in):
    model = trap_model()
    model.policy.turns[0].action_net.bias.data += th.tensor([0.0, 0.0, 100.0, 0.0])
    stages = Stages(StageSettings(roll_in=roll_in), n_turns=3, start=0, total=300)
    rows = np.arange(4000)
    actions, _ = act_in_stage(model.policy, stages, th.zeros(4000, 7), np.zeros(4000, int), th.Generator(), None, rows)
    share = (actions == 2).float().mean().item()
    assert share == pytest.approx(1.0 - roll_in * 0.75, abs=0.03)


def test_roll_in_takes_valid_actions_only():
    model = SeeUPO("MlpPolicy", make_vec(TOOLS, 16), seed=0, **SMALL)
    assert model.masked
    seen = []

    class Spy(BaseCallback):
        def _on_step(self):
            seen.append(self.locals["masks"] is not None)
            valid = self.locals["masks"]
            for row, action in enumerate(self.locals["sampled"].numpy()):
                offset = 0
                for component, n in zip(action, self.model.action_space.nvec, strict=True):
                    assert valid[row, offset + int(component)]
                    offset += n
            return True

    model.learn(300, callback=Spy())
    assert all(seen)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Box(-2, 2, (2, 2)),
        spaces.Box(-2, 2, (2, 2), np.float64),
        spaces.Box(-2, 2, (2, 2), np.int64),
    ],
)
@pytest.mark.parametrize("ratio_level", ["joint", "token"])
def test_every_action_space_trains_in_stages(space, ratio_level):
    class Walk(gym.Env):
        observation_space = spaces.Box(0, 1, (1,))
        action_space = space
        max_turns = 3

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.turn = 0
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            self.turn += 1
            return np.zeros(1, dtype=np.float32), float(np.sum(action)), self.turn == 3, False, {}

    recorder = Recorder()
    model = SeeUPO("MlpPolicy", Walk(), seed=0, ratio_level=ratio_level, **SMALL)
    model.learn(48 * 3, callback=recorder)
    assert recorder.stages == [2, 1, 0]
    assert same(recorder.snapshots[0], snapshot(model)) == [False] * 3
    actions, _ = model.policy.explore(2000, th.Generator())
    if isinstance(space, spaces.Box):
        assert actions.shape == (2000, 2, 2)
        np.testing.assert_allclose(
            np.quantile(actions, [0.01, 0.25, 0.5, 0.75, 0.99]), [-1.96, -1, 0, 1, 1.96], atol=0.1
        )


def test_budgets():
    stages = Stages(StageSettings(), n_turns=3, start=100, total=400)
    assert (stages.turn, stages.end) == (2, 200)
    stages.advance(150, 0.0, trained=True)
    assert stages.turn == 2
    stages.advance(220, 0.0, trained=True)  # the 20 steps too many are shared by the stages that are left
    assert (stages.turn, stages.end) == (1, 310)
    stages.advance(310, 0.0, trained=True)
    assert (stages.turn, stages.end) == (0, 400)
    stages.advance(400, 0.0, trained=True)
    assert stages.finished
    assert Stages(StageSettings(stage_timesteps=70), n_turns=3, start=0, total=1000).end == 70
    assert Stages(StageSettings(sweep_fraction=0.4), n_turns=3, start=0, total=1000).end == 200


def test_a_stage_ends_at_a_plateau():
    stages = Stages(StageSettings(patience=2), n_turns=2, start=0, total=10_000)
    for steps, mean_return in enumerate([0.1, 0.2, 0.3, 0.4, 0.5]):
        stages.advance(steps, mean_return, trained=True)
        assert stages.turn == 1
    stages.advance(5, 0.3, trained=True)  # (0.5 + 0.3) / 2 is above (0.3 + 0.4) / 2
    assert stages.turn == 1
    stages.advance(6, 0.3, trained=True)  # (0.3 + 0.3) / 2 is below (0.4 + 0.5) / 2
    assert (stages.turn, stages.returns) == (0, [])


def test_final_sweeps_train_all_turns():
    model, recorder = trap_model(schedule_kwargs=dict(sweep_fraction=0.5)), Recorder()
    model.learn(48 * 6, callback=recorder)
    assert recorder.stages == [2, 1, 0, -1, -1, -1]
    assert same(recorder.snapshots[3], snapshot(model)) == [False] * 3


def test_the_last_policy_trains_with_all_turns_it_plays():
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 16, turns=4), seed=0, max_turns=2, **SMALL)
    stages = Stages(StageSettings(), n_turns=2, start=0, total=100)
    assert stages.update_order(4) == [[3], [2], [1]]
    model.learn(64)
    assert model.stages.update_order(4) == [[0]]


def test_a_turn_that_nobody_reaches_is_reported():
    class Short(gym.Env):
        observation_space = spaces.Box(0, 1, (1,))
        action_space = spaces.Discrete(2)
        max_turns = 2

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            return np.zeros(1, dtype=np.float32), float(action), True, False, {}

    model = SeeUPO("MlpPolicy", Short(), seed=0, **SMALL)
    before = snapshot(model)
    with pytest.warns(UserWarning, match="no episode reached turn 1 during its stage"):
        model.learn(64)
    assert same(before, snapshot(model)) == [False, True]


def test_stages_survive_a_stop_and_a_load(tmp_path):
    """Stopped in mid-stage, saved and loaded, a run goes on as the one that was only stopped."""
    stopped = trap_model().learn(48 * 9, callback=Recorder(stop_at=48 * 4 + 5))
    stopped.save(tmp_path / "model")
    assert stopped.stages.turn == 1
    loaded = SeeUPO.load(tmp_path / "model", env=make_vec(TRAP, 16, turns=3))
    left = 48 * 9 - loaded.num_timesteps
    assert loaded.stages == stopped.stages
    recorders = [Recorder(), Recorder()]
    finished_turn = snapshot(loaded)[2]
    for model, recorder in zip((stopped, loaded), recorders, strict=True):
        model.learn(left, callback=recorder, reset_num_timesteps=False)
    assert recorders[0].stages == recorders[1].stages == [1, 1, 0, 0, 0]
    assert same(snapshot(stopped), snapshot(loaded)) == [True] * 3
    assert same([finished_turn], [snapshot(loaded)[2]]) == [True]
    assert loaded.num_timesteps >= 48 * 9
    loaded.learn(48)
    assert loaded.stages.start == 0, "counting from 0 starts a new plan"


def test_notes_say_what_is_trained():
    stages = Stages(StageSettings(), n_turns=3, start=0, total=300)
    assert "turns 0 to 1 are not trained yet" in stages.note()
    stages.turn = 1
    assert "turn 0 is not trained yet" in stages.note()
    stages.turn = 0
    assert "the last stage" in stages.note()
    stages.turn = -1
    assert stages.note() is None


def test_evaluation_in_an_early_stage_says_so(tmp_path, capsys):
    model = trap_model(turns=3).learn(48 * 6, callback=Recorder(stop_at=48 * 3))
    save_model(model, tmp_path / "model.zip", get_algorithm("seeupo_staged"), TRAP, {"turns": 3})
    for command in (
        ["evaluate", str(tmp_path / "model.zip"), "--episodes", "2"],
        ["watch", str(tmp_path / "model.zip")],
    ):
        assert main(command) == 0
        assert "note: staged training is at turn 1 of 0 to 2: turn 0 is not trained yet" in capsys.readouterr().out
    assert stage_note(model.learn(48 * 3)) is None
    assert stage_note(SeeUPO("MlpPolicy", TRAP)) is None


def test_tensorboard_shows_the_stage(tmp_path):
    job = Job(get_algorithm("seeupo_staged"), TRAP, 0, 128 * 4 * 4, tmp_path, n_evals=4, n_eval_episodes=2)
    run_job(job)
    events = EventAccumulator(str(job.folder)).Reload()
    assert [event.value for event in events.Scalars("train/stage_turn")] == [3, 2, 1, 0]
    # Before training, within the iteration after a quarter, half and three quarters of the steps, and at the end.
    assert [event.value for event in events.Scalars("eval/stage_turn")] == [3, 3, 2, 1, -1]
    reached = [event.value for event in events.Scalars("train/stage_reached_fraction")]
    assert reached == [1.0] * 4


def test_the_short_trap_is_solved_in_stages():
    # 10,000 steps: 1.0 on seeds 0 to 9.
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 128, turns=3), seed=0, learning_rate=1e-2, schedule="staged")
    assert evaluate(model.learn(10_000), TRAP, 1, turns=3).mean_return == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "n_steps"), [(4, 60_000), (5, 130_000)])
@pytest.mark.parametrize("seed", range(10))
def test_the_long_traps_are_solved_in_stages(turns, n_steps, seed):
    """Issue 3; docs/benchmarks.md has the sweep and the simultaneous update beside it."""
    settings = dict(learning_rate=1e-2, ent_coef=0.1, schedule="staged")
    model = SeeUPO("MlpPolicy", make_vec(TRAP, 128, turns=turns), seed=seed, **settings)
    model.learn(n_steps - 128 * turns + 1)  # learn rounds up to whole iterations
    assert model.num_timesteps <= n_steps
    assert evaluate(model, TRAP, 1, turns=turns).mean_return == 1.0
