#!/bin/bash
# After the style of smoke tests in cluster documentation.
#SBATCH --gres=gpu:1
python - <<'END'
import torch
print(torch.cuda.device_count())
END
