"""What is hooked in verl: one row per dotted path. ``verl-otel doctor`` and docs/hooks.md read this table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hook:
    """One place in verl.

    ``feature`` groups rows that stand or fall together (and names them in ``VERL_OTEL_DISABLED_HOOKS``); ``wrapper``
    is ``module:function`` below ``verl_otel.instrumentation``, a hook of ``patch``, or a function of the module when
    ``attribute`` is empty; ``seen`` says what it shows; ``versions`` are the verl releases that it was tried with.
    """

    feature: str
    module: str
    attribute: str
    wrapper: str
    seen: str
    versions: str = "0.9.1"

    @property
    def path(self) -> str:
        return f"{self.module}.{self.attribute}" if self.attribute else self.module


_BASE = "verl.trainer.ppo.v1.trainer_base"
_LOOP = "verl.experimental.agent_loop.agent_loop"
_RANK = "verl.workers.engine_workers"

HOOKS: tuple[Hook, ...] = (
    Hook(
        "run",
        "verl.utils.config",
        "validate_config",
        "driver:before_run",
        "finds the entry point run by `-m`",
    ),
    Hook(
        "run",
        "verl.trainer.main_ppo",
        "run_ppo",
        "driver:run_ppo",
        "run started and finished, config, identity",
    ),
    Hook(
        "steps",
        "verl.utils.profiler.performance",
        "_timer",
        "trainer:timer",
        "training steps and their phases",
    ),
    Hook("steps", _BASE, "PPOTrainer.__init__", "trainer:init", "the trainer's step number"),
    Hook("steps", _BASE, "PPOTrainer.fit", "trainer:fit", "the end of the last step, failures"),
    Hook("steps", _BASE, "PPOTrainer._validate", "trainer:validate", "the validation before training"),
    Hook(
        "steps",
        _BASE,
        "PPOTrainer.prepare_step",
        "trainer:prepare_step",
        "phase `prepare`: prompts handed to rollout",
    ),
    Hook("steps", _BASE, "PPOTrainer._balance_batch", "trainer:balance_batch", "phase `balance`"),
    Hook("steps", _BASE, "PPOTrainer._compute_metrics", "trainer:compute_metrics", "phase `metrics`"),
    Hook(
        "outcomes",
        _BASE,
        "compute_advantage_for_multi_trajectories",
        "trainer:compute_advantage",
        "advantages, scores",
    ),
    Hook("outcomes", _BASE, "PPOTrainer.step", "trainer:step", "which trajectories a step trained on"),
    Hook(
        "metrics",
        "verl.utils.tracking",
        "Tracking.__init__",
        "tracking:init",
        "`otel` as a logger; config of the run",
    ),
    Hook("metrics", "verl.utils.tracking", "Tracking.log", "tracking:log", "every scalar at its step"),
    Hook("metrics", "verl.utils.tracking", "", "tracking:extend", "`track_metric`; `otel` among verl's loggers"),
    Hook(
        "generations",
        "verl.utils.tracking",
        "ValidationGenerationsLogger.log",
        "tracking:generations",
        "validation samples",
    ),
    Hook("trajectories", _LOOP, "AgentLoopWorker.__init__", "rollout:worker_init", "the worker's tokenizer"),
    Hook(
        "trajectories",
        _LOOP,
        "AgentLoopWorker._run_agent_loop",
        "rollout:run_agent_loop",
        "a trajectory's root",
    ),
    Hook("rewards", _LOOP, "AgentLoopWorker._compute_score", "rollout:compute_score", "reward and its parts"),
    Hook("turns", "verl.workers.rollout.llm_server", "LLMServerClient.generate", "rollout:generate", "turns"),
    Hook(
        "turns",
        "verl.workers.rollout.llm_server",
        "FullyAsyncLLMServerClient.generate",
        "rollout:generate",
        "turns, resumed ones as one",
    ),
    Hook(
        "turns",
        "verl.utils.rollout_trace",
        "RolloutTraceConfig.init",
        "rollout:trace_config",
        "`rollout.trace.backend=otel`",
    ),
    Hook(
        "tools",
        "verl.experimental.agent_loop.tool_agent_loop",
        "ToolAgentLoop._call_tool",
        "tools:call_tool",
        "tool calls, refused ones too",
    ),
    Hook(
        "tools",
        "verl.tools.function_tool",
        "FunctionTool.call",
        "tools:tool_body",
        "what a function tool raised",
    ),
    Hook("ranks", _RANK, "ActorRolloutRefWorker.__init__", "ranks:init", "role and rank"),
    Hook("ranks", _RANK, "ActorRolloutRefWorker.compute_log_prob", "ranks:compute_log_prob", "each rank's call"),
    Hook(
        "ranks",
        _RANK,
        "ActorRolloutRefWorker.compute_ref_log_prob",
        "ranks:compute_ref_log_prob",
        "each rank's call",
    ),
    Hook("ranks", _RANK, "ActorRolloutRefWorker.update_actor", "ranks:update_actor", "each rank's call"),
    Hook(
        "ranks",
        _RANK,
        "ActorRolloutRefWorker.update_weights",
        "ranks:update_weights",
        "each rank's call; its step number",
    ),
    Hook("ranks", _RANK, "ActorRolloutRefWorker.save_checkpoint", "ranks:save_checkpoint", "each rank's call"),
    Hook(
        "reward_workers",
        "verl.experimental.reward_loop.reward_loop",
        "RewardLoopWorker.compute_score",
        "servers:compute_score",
        "time of reward functions, failures",
    ),
    Hook(
        "engines",
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        "vLLMHttpServer.generate",
        "servers:generate",
        "time of requests in the rollout server",
    ),
)
