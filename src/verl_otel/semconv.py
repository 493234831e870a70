"""Every name that verl-otel puts on the wire. ``docs/semconv.md`` is the same list for readers.

GenAI names are those of the OpenTelemetry GenAI conventions (v1.41), ``rl.*`` follow the open proposal
(semantic-conventions-genai issue 88), ``verl.*`` are ours. Both sides of the house import this module; it imports
nothing.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
SCOPE_NAME: Final = "verl_otel"


class Resource:
    """Attributes of the process that emits."""

    SERVICE_NAME: Final = "service.name"
    SERVICE_INSTANCE_ID: Final = "service.instance.id"
    RUN_ID: Final = "rl.run.id"
    SYSTEM: Final = "rl.system"
    SYSTEM_VERSION: Final = "rl.system.version"
    ALGORITHM: Final = "rl.algorithm"
    MODEL: Final = "rl.model.name"
    PROJECT: Final = "verl.project.name"
    EXPERIMENT: Final = "verl.experiment.name"
    ATTEMPT: Final = "verl.run.attempt"
    ROLE: Final = "verl.process.role"
    RANK: Final = "verl.rank"
    WORLD_SIZE: Final = "verl.world_size"
    HOST_NAME: Final = "host.name"
    PROCESS_PID: Final = "process.pid"


class SpanType:
    """Values of ``verl.span.type``: which kind of span of ours this is."""

    STEP: Final = "step"
    PHASE: Final = "phase"
    WORKER: Final = "worker"
    TRAJECTORY: Final = "trajectory"
    TURN: Final = "turn"
    TOOL: Final = "tool"
    REWARD: Final = "reward"
    VALIDATION: Final = "validation"


SPAN_TYPE: Final = "verl.span.type"

# Names of spans
SPAN_STEP: Final = "training_step"
SPAN_VALIDATION: Final = "validation"
SPAN_REWARD: Final = "compute_reward"

# Step and phase
STEP: Final = "rl.loop.iteration"
EPOCH: Final = "verl.epoch"
PHASE_NAME: Final = "verl.phase.name"
RL_PHASE: Final = "rl.phase"
RL_BUCKET: Final = "rl.bucket"
STEP_DURATION: Final = "verl.step.duration_s"
WORKER_METHOD: Final = "verl.worker.method"

# Trajectory
PARTITION: Final = "verl.partition"
GROUP_ID: Final = "verl.group.id"
GROUP_INDEX: Final = "verl.group.index"
GROUP_SIZE: Final = "verl.group.size"
SAMPLE_INDEX: Final = "verl.sample.index"
DATA_SOURCE: Final = "verl.data_source"
GROUND_TRUTH: Final = "verl.ground_truth"
TURNS: Final = "verl.trajectory.turns"
NUM_TURNS: Final = "verl.trajectory.num_turns"
TOOL_CALLS: Final = "verl.trajectory.tool_calls"
TOOL_ERRORS: Final = "verl.trajectory.tool_errors"
PROMPT_TOKENS: Final = "verl.trajectory.prompt_tokens"
RESPONSE_TOKENS: Final = "verl.trajectory.response_tokens"
FINISH: Final = "verl.trajectory.finish"
REWARD: Final = "rl.reward"
POLICY_VERSION_START: Final = "rl.policy.version.start"
POLICY_VERSION_END: Final = "rl.policy.version.end"

# Turn
TURN_INDEX: Final = "verl.turn.index"
TURN_INPUT_OFFSET: Final = "verl.turn.input.offset"
TURN_INPUT_TEXT: Final = "verl.turn.input.text"
TURN_OUTPUT_TEXT: Final = "verl.turn.output.text"
TURN_INPUT_TOKEN_IDS: Final = "verl.turn.input.token_ids"
TURN_OUTPUT_TOKEN_IDS: Final = "verl.turn.output.token_ids"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
PREEMPTIONS: Final = "verl.turn.preemptions"
LOGPROB_MEAN: Final = "verl.turn.logprob.mean"
LOGPROB_MIN: Final = "verl.turn.logprob.min"
CONTENT_TRUNCATED: Final = "verl.content.truncated"

# GenAI
OPERATION: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
PROVIDER: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_REWARD: Final = "verl.tool.reward"
ERROR_TYPE: Final = "error.type"

# Reward
REWARD_MANAGER: Final = "verl.reward.manager"
REWARD_PART_PREFIX: Final = "verl.reward.part."


class Event:
    """``event_name`` of the OTLP log records."""

    RUN_STARTED: Final = "verl.run.started"
    RUN_FINISHED: Final = "verl.run.finished"
    METRICS: Final = "verl.metrics"
    GENERATION: Final = "verl.generation"
    EVALUATION: Final = "gen_ai.evaluation.result"
    OUTCOME: Final = "verl.trajectory.outcome"


# Attributes of events
EVENT_ID: Final = "verl.event.id"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
OUTCOME: Final = "verl.outcome"
ADVANTAGE: Final = "rl.advantage"
STALENESS: Final = "rl.staleness"
OUTPUT_INDEX: Final = "verl.trajectory.output_index"
GENERATION_INDEX: Final = "verl.generation.index"
RUN_STATUS: Final = "verl.run.status"
EXIT_CODE: Final = "process.exit.code"
METRICS_SKIPPED: Final = "verl.metrics.skipped"
STEP_METRIC_PREFIX: Final = "verl.metric."


class Metric:
    """Names of our own instruments; a scalar that verl logs is a gauge named ``verl.`` + its key made legal."""

    STEP_DURATION: Final = "verl.step.duration"
    PHASE_DURATION: Final = "verl.phase.duration"
    TRAJECTORY_DURATION: Final = "verl.trajectory.duration"
    TURN_DURATION: Final = "gen_ai.client.operation.duration"
    TOOL_DURATION: Final = "verl.tool.duration"
    TRAJECTORY_REWARD: Final = "verl.trajectory.reward"
    TRAJECTORY_TURNS: Final = "verl.trajectory.turns"
    TOKEN_USAGE: Final = "gen_ai.client.token.usage"
    STALENESS: Final = "verl.trajectory.staleness"
    REWARD_DURATION: Final = "verl.reward.duration"
    ENGINE_DURATION: Final = "verl.engine.request.duration"
    WORKER_DURATION: Final = "verl.worker.duration"
    TELEMETRY: Final = "verl_otel.telemetry.events"
    SCALAR_PREFIX: Final = "verl."


# verl's phase name -> (rl.phase, rl.bucket)
PHASES: Final[dict[str, tuple[str, str]]] = {
    "prepare": ("sample", "overhead"),
    "gen": ("sample", "productive"),
    "reward": ("reward", "productive"),
    "balance": ("train", "overhead"),
    "old_log_prob": ("train", "productive"),
    "ref": ("train", "productive"),
    "values": ("train", "productive"),
    "adv": ("train", "productive"),
    "update_critic": ("train", "productive"),
    "update_actor": ("train", "productive"),
    "update_weights": ("sync", "overhead"),
    "save_checkpoint": ("checkpoint", "overhead"),
    "testing": ("evaluate", "overhead"),
    "dump_rollout_generations": ("train", "overhead"),
    "metrics": ("train", "overhead"),
}
