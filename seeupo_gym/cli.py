"""The command ``seeupo-gym``."""

from __future__ import annotations

import argparse
import ast
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from seeupo_gym.baselines.presets import PRESETS
from seeupo_gym.benchmark.tables import final_table, format_table, solved_line
from seeupo_gym.system.errors import is_about_input
from seeupo_gym.system.interrupts import exit_code, signals_interrupt

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

_ERROR, _JOB_FAILED = 2, 1

_WORDS = {"true": True, "false": False, "none": None}


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_ERROR, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """
    Read ``key=value`` arguments. A value is a Python literal, or true, false or none; anything else is text.

    :param pairs: arguments as typed
    :return: key -> value
    :raises ValueError: for an argument without ``=``, and for a key that is given twice
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"expected key=value, got {pair!r}")
        if key in values:
            raise ValueError(f"{key!r} is given more than once")
        try:
            values[key] = _WORDS[text.lower()] if text.lower() in _WORDS else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[key] = text
    return values


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    :param argv: arguments; None: those of the process
    :return: exit code: 0, 1 if a job of a benchmark or a claim of the theory failed, 2 for a user's error, 130
        after Ctrl-C, 143 after SIGTERM, 129 when the terminal is gone
    :raises Exception: for a fault of an environment or of a program, which is none of the user's arguments and files
    """
    try:
        arguments = _make_parser().parse_args(argv)
    except SystemExit as end:  # argparse ends so, also after --help
        return int(end.code or 0)
    command: Callable[[argparse.Namespace], int] = arguments.run
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows the others
    try:
        with signals_interrupt():
            code = command(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        _say("stopped; what was finished is kept")
        return exit_code(interrupt)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the output goes nowhere
        return 0
    except Exception as error:
        if not is_about_input(error):
            raise
        if arguments.debug:
            traceback.print_exc()
        print(f"seeupo-gym: error: {' '.join(str(error).split())}", file=sys.stderr)
        return _ERROR


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="seeupo-gym", description="Multi-turn environments, SeeUPO and its baselines.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    envs = commands.add_parser("envs", help="list the environments")
    envs.set_defaults(run=_envs)

    train = commands.add_parser("train", help="train one algorithm on one environment")
    train.add_argument("algo", help="a registered algorithm, for example seeupo or ppo")
    train.add_argument("env", help="registered id, for example seeupo_gym/ToolChain-v0")
    train.add_argument("--steps", type=int, default=100_000, help="environment steps (default %(default)s)")
    train.add_argument("--seed", type=int, default=0, help="default %(default)s")
    train.add_argument("--out", type=Path, default=Path("runs/train"), help="folder (default %(default)s)")
    train.add_argument("--evals", type=int, default=20, help="evaluations on the way (default %(default)s)")
    train.add_argument("--episodes", type=int, default=100, help="episodes of an evaluation (default %(default)s)")
    _add_run_options(train, set_help="setting of the algorithm (repeatable), for example --set learning_rate=0.001")
    train.add_argument(
        "--checkpoint-every", type=int, default=10_000, metavar="STEPS", help="0: never (default %(default)s)"
    )
    train.add_argument(
        "--keep-checkpoints", type=int, default=3, metavar="K", help="the last ones (default %(default)s)"
    )
    train.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in the folder, if there is one"
    )
    train.set_defaults(run=_train)

    for name, run, text in (("evaluate", _evaluate, "evaluate a saved model"), ("watch", _watch, "print an episode")):
        command = commands.add_parser(name, help=text)
        command.add_argument("model", type=Path, help="model.zip that train or benchmark wrote")
        command.add_argument("--seed", type=int, help="seed of the (first) episode; default: the first held-out one")
        command.add_argument("--untrusted", action="store_true", help="execute nothing that is in the file")
        command.add_argument("--sample", action="store_true", help="draw actions; default: the most likely ones")
        if name == "evaluate":
            command.add_argument("--episodes", type=int, default=100, help="default %(default)s")
        command.set_defaults(run=run)

    bench = commands.add_parser("benchmark", help="compare algorithms on environments, with several seeds each")
    bench.add_argument("--preset", choices=sorted(PRESETS), help="a prepared benchmark; other options change it")
    bench.add_argument("--algos", nargs="+", metavar="NAME", help="default: all")
    bench.add_argument("--envs", nargs="+", metavar="ID", help="default: all of this package's")
    bench.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="default: 0 1 2")
    bench.add_argument("--steps", type=int, help="environment steps of each run (default 100000)")
    bench.add_argument("--evals", type=int, help="evaluations of each run (default 20)")
    bench.add_argument("--episodes", type=int, default=100, help="episodes of an evaluation (default %(default)s)")
    bench.add_argument("--out", type=Path, default=Path("runs"), help="folder (default %(default)s)")
    bench.add_argument("--workers", type=int, help="processes at a time (default: number of cores)")
    bench.add_argument("--no-plots", action="store_true", help="draw no learning curves")
    _add_run_options(bench, set_help="setting of an algorithm (repeatable), for example --set ppo.n_epochs=5")
    bench.set_defaults(run=_benchmark)

    theory = commands.add_parser("theory", help="check the theory on small MDPs, exactly")
    theory.add_argument("--mdps", type=int, default=300, help="random MDPs (default %(default)s)")
    theory.add_argument("--seed", type=int, default=0, help="default %(default)s")
    theory.add_argument("--out", type=Path, default=Path("runs/theory"), help="folder (default %(default)s)")
    theory.add_argument("--no-plots", action="store_true", help="draw no plots")
    theory.set_defaults(run=_theory)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show the traceback of every error")
    return parser


def _add_run_options(parser: argparse.ArgumentParser, set_help: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=set_help)
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the environment (repeatable)"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace earlier results of these runs, and those that no longer compare with them",
    )
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")


def _envs(arguments: argparse.Namespace) -> int:
    import gymnasium as gym

    from seeupo_gym.envs import ENV_IDS
    from seeupo_gym.envs.reference import reference_scores

    rows = []
    for env_id in ENV_IDS:
        for level in gym.make(env_id).get_wrapper_attr("task").levels or ("",):
            kwargs: dict[str, Any] = {"level": level} if level else {}
            task = gym.make(env_id, **kwargs).get_wrapper_attr("task")
            scores = reference_scores(env_id, **kwargs)
            assert scores is not None, "every task of this package has them"
            rows.append(
                [
                    env_id,
                    level,
                    str(task.observation_space),
                    str(task.action_space),
                    "yes" if task.has_action_masks else "",
                    str(task.max_turns),
                    f"{scores.random:.3f}",
                    f"{scores.expert:.3f}",
                ]
            )
    print(format_table(["id", "level", "observations", "actions", "masks", ">turns", ">random", ">expert"], rows))
    return 0


def _train(arguments: argparse.Namespace) -> int:
    from seeupo_gym.baselines.registry import get_algorithm
    from seeupo_gym.benchmark.folder import RunFolder
    from seeupo_gym.benchmark.jobs import REFUSE, REPLACE, RESUME, load_model, run_job
    from seeupo_gym.benchmark.results import MODEL_FILE
    from seeupo_gym.benchmark.run import plan_jobs, progress_bar

    if arguments.resume and arguments.overwrite:
        raise ValueError("--resume goes on with an earlier run and --overwrite replaces it: pass one of them")
    for name in ("checkpoint_every", "keep_checkpoints"):
        least = int(name == "keep_checkpoints")
        if getattr(arguments, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(arguments, name)}")
    spec = get_algorithm(arguments.algo).with_settings(parse_pairs(arguments.settings))
    env_kwargs = {arguments.env: parse_pairs(arguments.env_arg)}
    steps, seeds, n_evals, n_episodes = arguments.steps, [arguments.seed], arguments.evals, arguments.episodes
    (job,) = plan_jobs([spec], [arguments.env], seeds, steps, arguments.out, n_evals, n_episodes, env_kwargs)
    job = replace(job, checkpoint_every=arguments.checkpoint_every or None, keep_checkpoints=arguments.keep_checkpoints)
    bar = progress_bar(steps, 0, show=not arguments.no_progress)
    taken = 0

    def report(n_steps: int) -> None:
        nonlocal taken
        bar.update(min(n_steps, steps) - taken)
        taken = min(n_steps, steps)

    try:
        result = run_job(job, report, RESUME if arguments.resume else REPLACE if arguments.overwrite else REFUSE)
        report(steps)
    except BaseException:
        bar.close()
        if taken and (path := RunFolder(job).last_state()) is not None:
            _say(f"what was learned so far is in {path}; the same command with --resume goes on from there")
        raise
    bar.close()
    model = job.folder / MODEL_FILE
    load_model(model)  # what cannot be read is not announced
    last = result["evaluations"][-1]
    speed = f"{result['timesteps']:,} steps at {result['steps_per_second']:,.0f} steps/s"
    print(f"{speed}; then, on {n_episodes} held-out episodes:")
    _print_scores(last["score"], last["normalized_score"], last["success_rate"], last["episode_length"])
    print(f"model: {model}\n\n  seeupo-gym watch {model}\n  tensorboard --logdir {arguments.out}")
    return 0


def _say(text: str) -> None:
    """Print to stderr, if there still is a terminal."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _print_scores(score: float, normalized: float | None, success_rate: float | None, length: float) -> None:
    parts = [f"mean return {score:.3f}"]
    if normalized is not None:
        parts.append(f"normalised {normalized:.3f} (random play 0, expert 1)")
    if success_rate is not None:
        parts.append(f"success {success_rate:.0%}")
    print(", ".join([*parts, f"{length:.1f} turns"]))


def _print_written(paths: Sequence[Path]) -> None:
    """Name files that are there, and can be read."""
    for path in paths:
        if not path.read_bytes():
            raise OSError(f"{path} is empty: the disk has not kept it; run the same command once more")
    print("written:", *paths, sep="\n  ")


def _print_stage_note(model: BaseAlgorithm) -> None:
    from seeupo_gym.benchmark.evaluation import stage_note

    note = stage_note(model)
    if note is not None:
        print(f"note: {note}")


def _load_model(path: Path, untrusted: bool) -> tuple[BaseAlgorithm, dict[str, Any]]:
    """Load a model whose environment can be made here."""
    from seeupo_gym.benchmark.environments import check_env
    from seeupo_gym.benchmark.jobs import load_model

    model, info = load_model(path, trusted=not untrusted)
    try:
        check_env(info["env_id"], info["env_kwargs"])
    except ValueError as error:
        raise ValueError(
            f"{error}. If a script of yours registers it, load the model there: seeupo_gym.benchmark.jobs.load_model"
        ) from error
    return model, info


def _evaluate(arguments: argparse.Namespace) -> int:
    from seeupo_gym.benchmark.evaluation import evaluate
    from seeupo_gym.envs.reference import normalize, reference_scores
    from seeupo_gym.envs.task import HELD_OUT_SEED

    model, info = _load_model(arguments.model, arguments.untrusted)
    env_id, env_kwargs = info["env_id"], info["env_kwargs"]
    first_seed = HELD_OUT_SEED if arguments.seed is None else arguments.seed
    result = evaluate(model, env_id, arguments.episodes, first_seed, not arguments.sample, **env_kwargs)
    reference = reference_scores(env_id, **env_kwargs)
    normalized = None if reference is None else normalize(result.mean_return, reference)
    last_seed = first_seed + arguments.episodes - 1
    print(f"{info['algorithm']} on {env_id}, {arguments.episodes} episodes (seeds {first_seed} to {last_seed}):")
    _print_stage_note(model)
    _print_scores(result.mean_return, normalized, result.success_rate, result.mean_length)
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from seeupo_gym.benchmark.watch import watch_episode
    from seeupo_gym.envs.task import HELD_OUT_SEED

    model, info = _load_model(arguments.model, arguments.untrusted)
    seed = HELD_OUT_SEED if arguments.seed is None else arguments.seed
    texts = watch_episode(model, info["env_id"], seed, not arguments.sample, **info["env_kwargs"])
    print(f"{info['algorithm']} on {info['env_id']}, trained for {info['timesteps']:,} steps\n")
    _print_stage_note(model)
    for text in texts:
        print(text)
    return 0


def _benchmark(arguments: argparse.Namespace) -> int:
    from seeupo_gym.baselines.registry import algorithm_names
    from seeupo_gym.benchmark.figures import check_matplotlib
    from seeupo_gym.benchmark.plots import plot_learning_curves
    from seeupo_gym.benchmark.results import CSV_FILE, JSON_FILE
    from seeupo_gym.benchmark.run import run_benchmark
    from seeupo_gym.envs import ENV_IDS

    if not arguments.no_plots:
        check_matplotlib()  # now, not after minutes of training
    defaults = {"algos": algorithm_names(), "envs": list(ENV_IDS), "seeds": [0, 1, 2], "steps": 100_000, "evals": 20}
    given = {name: getattr(arguments, name) for name in defaults if getattr(arguments, name) is not None}
    preset = PRESETS.get(arguments.preset, {})
    chosen = {**defaults, **preset, **given}
    settings = {name: dict(preset.get("settings", {}).get(name, {})) for name in chosen["algos"]}
    for key, value in parse_pairs(arguments.settings).items():
        algorithm, dot, name = key.partition(".")
        if not dot:
            raise ValueError(f"expected --set ALGORITHM.KEY=VALUE, got {key!r}")
        settings.setdefault(algorithm, {})[name] = value
    env_arguments = parse_pairs(arguments.env_arg)
    preset_kwargs = preset.get("env_kwargs", {})
    env_kwargs = {env_id: {**preset_kwargs.get(env_id, {}), **env_arguments} for env_id in chosen["envs"]}
    if preset and arguments.envs is None:
        env_kwargs = _leave_out_missing(env_kwargs)
        chosen["envs"] = list(env_kwargs)
    out: Path = arguments.out
    run = run_benchmark(
        chosen["algos"],
        chosen["envs"],
        chosen["seeds"],
        chosen["steps"],
        out,
        n_evals=chosen["evals"],
        n_eval_episodes=arguments.episodes,
        n_workers=arguments.workers,
        progress=not arguments.no_progress,
        overwrite=arguments.overwrite,
        settings=settings,
        env_kwargs=env_kwargs,
        report=_report,
    )
    if run.kept:
        print(f"kept {len(run.kept)} finished runs of before")
    if run.results:
        print(f"\n{final_table(run.results)}\n{solved_line(run.results)}\n")
        paths = [out / CSV_FILE, out / JSON_FILE]
        if not arguments.no_plots:
            paths += plot_learning_curves(out / CSV_FILE, out)
        _print_written(paths)
        print(f"  {out}/<environment>/<algorithm>/seed_<k>/  (model.zip, result.json, TensorBoard events)")
        print(f"\n  tensorboard --logdir {out}")
    for name, text in run.failures.items():
        print(f"{name} failed: {text.strip().splitlines()[-1]}", file=sys.stderr)
    return _JOB_FAILED if run.failures else 0


def _leave_out_missing(env_kwargs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Drop the environments of a preset whose packages are missing, and say so before anything starts."""
    from seeupo_gym.benchmark.environments import missing_packages

    missing = {env_id: missing_packages(env_id, kwargs) for env_id, kwargs in env_kwargs.items()}
    for env_id, reason in missing.items():
        if reason:
            print(f"left out: {env_id}: {reason}", file=sys.stderr)
    return {env_id: kwargs for env_id, kwargs in env_kwargs.items() if not missing[env_id]}


def _theory(arguments: argparse.Namespace) -> int:
    from seeupo_gym.benchmark.figures import check_matplotlib
    from seeupo_gym.theory.report import HEADER, NOTE, run_theory

    if not arguments.no_plots:
        check_matplotlib()
    run = run_theory(arguments.mdps, arguments.seed, arguments.out, not arguments.no_plots, _report)
    print(f"{format_table(HEADER, run.table())}\n{NOTE}\n")
    _print_written(run.paths)
    return _JOB_FAILED if run.failed else 0


def _report(text: str) -> None:
    """Print a line without damage to a progress bar."""
    try:
        from tqdm import tqdm
    except ImportError:
        print(text, file=sys.stderr)
    else:
        tqdm.write(text, file=sys.stderr)
