"""The progress bar of ``learn``."""

from __future__ import annotations

from stable_baselines3.common.callbacks import ProgressBarCallback


class ProgressBar(ProgressBarCallback):
    """SB3's progress bar, following ``num_timesteps``: a vector step counts the lanes that took one."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._shown = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(self.model.num_timesteps - self._shown)
        self._shown = self.model.num_timesteps
        return True

    def _on_rollout_end(self) -> None:
        speed = self.logger.name_to_value.get("time/tokens_per_second")
        if speed is not None:  # of a language model
            self.pbar.set_description(f"{speed:,.0f} tokens/s")
