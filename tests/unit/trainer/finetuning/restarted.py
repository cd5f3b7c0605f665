"""Two ranks, of which one is killed in the first attempt: run by torchrun in test_restart.py."""

import os
import signal
import time

import torch
import torch.distributed as dist

from services.trainer.finetuning.ranks.group import joined, place_of

if __name__ == "__main__":
    place, attempt = place_of(os.environ), os.environ["TORCHELASTIC_RESTART_COUNT"]
    if (attempt, place.rank) == ("1", 0):
        time.sleep(1.0)  # meanwhile the other rank looks for this one's address
    with joined(place, torch.device("cpu"), 20.0):
        for step in range(4):
            ones = torch.ones(1)
            dist.all_reduce(ones)
            if (attempt, step, place.rank) == ("0", 2, 1):
                os.kill(os.getpid(), signal.SIGKILL)
        os.write(1, f"attempt {attempt} ended with {ones.item():g} ranks\n".encode())  # in one piece
        os._exit(0)
