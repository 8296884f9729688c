#!/bin/bash
# After the style of scripts that write the program of their tasks first.
#SBATCH -n 2 --gpus-per-task=1
cat > run_task.sh <<'EOT'
#!/bin/bash
export RANK=$SLURM_PROCID
python train.py
EOT
chmod +x run_task.sh
srun ./run_task.sh
