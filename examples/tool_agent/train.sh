#!/bin/bash
# Trains the tool agent with real verl and vLLM on the CPU. Usage: train.sh WORKDIR [further Hydra overrides…]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=${1:?usage: train.sh WORKDIR [overrides…]}
shift
mkdir -p "$work"
work=$(cd "$work" && pwd)
assets=${ASSETS:-$work/assets}
# verl, vLLM and telemetry are for the training, not for making its assets.
env -u PYTHONPATH python "$here/assets.py" "$assets"
cd "$work"

# The platform plugin, through verl's own extension points; "cuda" and "nvidia" pick verl's FSDP engine.
export VERL_USE_EXTERNAL_MODULES=cpu_platform VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda VERL_ENGINE_VENDOR=nvidia
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$here
export VERL_FILE_LOGGER_PATH=${VERL_FILE_LOGGER_PATH:-$work/metrics.jsonl}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0
# Ray would start a process for each of the CPUs that it is told of below, most of them for nothing.
export RAY_prestart_worker_first_driver=0
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_LOGGING_LEVEL=WARNING

exec python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files="$assets/train.parquet" \
  data.val_files="$assets/val.parquet" \
  data.train_batch_size=4 \
  data.dataloader_num_workers=0 \
  data.max_prompt_length=96 \
  data.max_response_length=128 \
  actor_rollout_ref.model.path="$assets/model" \
  actor_rollout_ref.model.use_remove_padding=False \
  +actor_rollout_ref.model.override_config.attn_implementation=eager \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.ppo_mini_batch_size=4 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
  actor_rollout_ref.actor.use_dynamic_bsz=False \
  actor_rollout_ref.actor.use_torch_compile=False \
  actor_rollout_ref.ref.strategy=fsdp2 \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.enforce_eager=True \
  +actor_rollout_ref.rollout.enable_sleep_mode=False \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.2 \
  actor_rollout_ref.rollout.free_cache_engine=False \
  actor_rollout_ref.rollout.load_format=auto \
  actor_rollout_ref.rollout.max_model_len=256 \
  actor_rollout_ref.rollout.max_num_seqs=16 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 \
  actor_rollout_ref.rollout.agent.num_workers=1 \
  actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent \
  actor_rollout_ref.rollout.multi_turn.enable=True \
  actor_rollout_ref.rollout.multi_turn.format=hermes \
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4 \
  actor_rollout_ref.rollout.multi_turn.function_tool_path="$here/tools.py" \
  reward.custom_reward_function.path="$here/reward.py" \
  reward.custom_reward_function.name=compute_score \
  reward.num_workers=1 \
  trainer.device=cpu \
  trainer.n_gpus_per_node=1 \
  trainer.nnodes=1 \
  trainer.logger='["console","file"]' \
  trainer.project_name=tool-agent \
  trainer.experiment_name=grpo-cpu \
  trainer.default_local_dir="$work/checkpoints" \
  trainer.rollout_data_dir="$work/rollouts" \
  trainer.log_val_generations=4 \
  trainer.total_training_steps=3 \
  trainer.total_epochs=1 \
  trainer.save_freq=-1 \
  trainer.test_freq=2 \
  ray_kwargs.ray_init.num_cpus=16 \
  +ray_kwargs.ray_init.num_gpus=1 \
  "$@"
