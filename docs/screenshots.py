"""
Pictures of TensorBoard for the documentation: trains a run, and photographs it in a headless Chromium.

    python docs/screenshots.py

writes docs/images/tensorboard_eval.png and tensorboard_turns.png. It needs a program ``chromium``.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
RUN = ["train", "seeupo", "seeupo_gym/ToolChain-v0", "--steps", "60000"]
# Name of the picture -> the address within TensorBoard, and the size of the window.
PICTURES = {
    "tensorboard_eval": ("#scalars&tagFilter=eval%2F(normalized_score|success_rate)", (1200, 470)),
    "tensorboard_turns": ("#custom_scalars", (1200, 900)),
}
_SECONDS = 120


def main() -> None:
    """Train, start TensorBoard, and write the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "seeupo_gym", *RUN, "--out", folder], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"http://127.0.0.1:{port}/"
        server = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", str(port), "--load_fast=false"]
        )
        try:
            _wait(address + "data/runs")
            for name, (place, size) in PICTURES.items():
                _photograph(address + place, size, IMAGES / f"{name}.png")
        finally:
            server.terminate()
            server.wait()


def _wait(address: str) -> None:
    """Wait until TensorBoard has read the run."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        try:
            if b"seed_0" in urllib.request.urlopen(address, timeout=5).read():
                return
        except OSError:
            pass
        time.sleep(1)
    raise TimeoutError(f"TensorBoard showed no run at {address} within {_SECONDS} s")


def _photograph(address: str, size: tuple[int, int], path: Path) -> None:
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=30000", f"--screenshot={path}", address]
    subprocess.run(command, check=True, timeout=_SECONDS)
    print(path)


if __name__ == "__main__":
    main()
