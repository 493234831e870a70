"""A trajectory as a span tree: its root, turns, tool calls and reward, for verl's agent loops and for the public API.

The open trajectory of a task is a context variable, so that turns and tool calls of concurrent trajectories, and
parallel tool calls of one, find theirs. Content is worked out in the background thread; spans end there with the
times that were measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from verl_otel import identity, semconv
from verl_otel.identity import SpanId
from verl_otel.telemetry import content, state
from verl_otel.telemetry.sdk import Sdk, parent
from verl_otel.telemetry.spans import set_error, span_ids

current: ContextVar[Trajectory | None] = ContextVar("verl_otel_trajectory", default=None)

Decode = Callable[..., str]


@dataclass(slots=True)
class _Turn:
    span: trace.Span
    index: int
    start_ns: int
    offset: int = 0
    new_ids: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    messages: Any = None
    end_ns: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    input_text: str = ""
    output_text: str = ""


class Trajectory:
    """One open trajectory. Made by ``start``; ``finish`` ends it. Only ``finish_content`` runs in another thread."""

    def __init__(self, sdk: Sdk, span: trace.Span, ids: SpanId, partition: str, step: int, model: str) -> None:
        self.sdk = sdk
        self.span = span
        self.ids = ids
        self.partition = partition
        self.step = step
        self.model = model
        self.group = ""
        self.session: int | str = 0
        self.start_ns = time.time_ns()
        self.turns = 0
        self.tool_calls = 0
        self.tool_errors = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.policy_start: Any = None
        self.policy_end: Any = None
        self.reward: float | None = None
        self.finish_reason = ""
        self.tool_messages: list[dict[str, Any]] = []
        self.tools_since_turn = 0
        self.prompt_messages: Any = None
        self._sequence: list[int] = []
        self._decode: Decode | None = None
        self._decoder: content.PieceDecoder | None = None
        self._decoded = 0
        self._waiting: _Turn | None = None
        self._last_output = ""

    # Content -----------------------------------------------------------------

    def decode_with(self, decode: Decode | None) -> None:
        """Use ``decode(ids)`` (a tokenizer's) for the texts of turns that have token ids."""
        if decode is not None and self.sdk.settings.token2text and self.sdk.capture:
            self._decode = decode
            self._decoder = content.PieceDecoder(lambda ids: decode(ids))

    def put_text(self, attributes: dict[str, Any], name: str, text: str) -> None:
        """Put ``text`` among ``attributes`` if content is captured, cut to the limit."""
        if self.sdk.capture and text:
            attributes[name], cut = content.clip(text, self.sdk.settings.max_length)
            if cut:
                attributes[semconv.CONTENT_TRUNCATED] = True

    # Turns -------------------------------------------------------------------

    def start_turn(
        self,
        prompt_ids: Sequence[int] | None = None,
        messages: Any = None,
        request: Mapping[str, Any] | None = None,
    ) -> _Turn:
        """Start an engine call with ``prompt_ids`` (the whole sequence so far) or ``messages`` (what is new)."""
        attributes: dict[str, Any] = {
            semconv.SPAN_TYPE: semconv.SpanType.TURN,
            semconv.OPERATION: "chat",
            semconv.TURN_INDEX: self.turns,
            semconv.STEP: self.step,
            semconv.PARTITION: self.partition,
        }
        if self.model:
            attributes[semconv.REQUEST_MODEL] = self.model
        for name, value in (request or {}).items():
            if value is not None:
                attributes[name] = value
        start_ns = time.time_ns()
        name = f"chat {self.model}" if self.model else "chat"
        span = self.sdk.start_span(name, attributes, context=parent(self.ids), kind=SpanKind.CLIENT, start_ns=start_ns)
        turn = _Turn(span, self.turns, start_ns, messages=messages)
        self.turns += 1
        # What the tools called since the turn before answered is this turn's new input.
        answers, self.tool_messages, self.tools_since_turn = self.tool_messages, [], 0
        if messages is None and self.sdk.capture:
            turn.messages = answers or (self.prompt_messages if turn.index == 0 else None)
        if prompt_ids is not None:
            turn.offset = content.common_prefix(prompt_ids, self._sequence)
            turn.new_ids = list(prompt_ids[turn.offset :])
            turn.sequence = self._sequence[: turn.offset] if turn.offset < len(self._sequence) else self._sequence
            self._sequence = [*turn.sequence, *turn.new_ids]
        return turn

    def finish_turn(
        self,
        turn: _Turn,
        output_ids: Sequence[int] | None = None,
        output_text: str = "",
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        finish_reason: str = "",
        log_probs: Sequence[float] | None = None,
        attributes: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> None:
        """End a turn with what was generated; counts go in as given, or from the token ids."""
        turn.end_ns = time.time_ns()
        if output_ids is not None:
            input_tokens = turn.offset + len(turn.new_ids) if input_tokens is None else input_tokens
            output_tokens = len(output_ids) if output_tokens is None else output_tokens
            self._sequence = [*self._sequence, *output_ids]
        attrs = turn.attributes
        attrs.update({name: value for name, value in (attributes or {}).items() if value is not None})
        if input_tokens is not None:
            attrs[semconv.INPUT_TOKENS] = input_tokens
            self.input_tokens += input_tokens
        if output_tokens is not None:
            attrs[semconv.OUTPUT_TOKENS] = output_tokens
            self.output_tokens += output_tokens
        if finish_reason:
            attrs[semconv.RESPONSE_FINISH_REASONS] = [finish_reason]
            self.finish_reason = finish_reason
        if error is not None:
            set_error(turn.span, error)
        turn.output_text = output_text
        job = (turn, list(output_ids or ()), list(log_probs or ()), finish_reason)
        if not state.background.submit(self._finish_turn_content, *job):
            self._end_turn(turn)

    def _finish_turn_content(
        self,
        turn: _Turn,
        output_ids: list[int],
        log_probs: list[float],
        finish_reason: str,
    ) -> None:
        if self._waiting is not None:
            self._end_turn(self._waiting)
            self._waiting = None
        try:
            self._add_content(turn, output_ids, log_probs, finish_reason)
        finally:
            if self._decoder is not None and self._decoder.held:
                # Its last character is incomplete; the next turn, or the end of the trajectory, tells what it is.
                self._waiting = turn
            else:
                self._end_turn(turn)

    def _add_content(
        self,
        turn: _Turn,
        output_ids: list[int],
        log_probs: list[float],
        finish_reason: str,
    ) -> None:
        attrs = turn.attributes
        numbers = [value for value in log_probs if value is not None]
        if numbers:
            attrs[semconv.LOGPROB_MEAN] = float(sum(numbers) / len(numbers))
            attrs[semconv.LOGPROB_MIN] = float(min(numbers))
        if not self.sdk.capture:
            return
        if output_ids or turn.new_ids:
            attrs[semconv.TURN_INPUT_OFFSET] = turn.offset
            if self.sdk.settings.token_ids:
                attrs[semconv.TURN_INPUT_TOKEN_IDS] = content.pack_token_ids(turn.new_ids)
                attrs[semconv.TURN_OUTPUT_TOKEN_IDS] = content.pack_token_ids(output_ids)
        plain = ""
        if self._decoder is not None and self._decode is not None:
            if turn.offset < self._decoded:
                self._decoder.restart(turn.sequence)
            turn.input_text = self._decoder.piece(turn.new_ids)
            turn.output_text = self._decoder.piece(output_ids)
            self._decoded = turn.offset + len(turn.new_ids) + len(output_ids)
            plain = self._decode(output_ids, skip_special_tokens=True) if output_ids else ""
        else:
            plain = turn.output_text
        if turn.messages is not None:
            self.put_text(attrs, semconv.INPUT_MESSAGES, content.to_json(content.genai_messages(turn.messages)))
        elif turn.index and turn.new_ids and self._decode is not None:
            text = self._decode(turn.new_ids, skip_special_tokens=True)
            message = {
                "role": "user",
                "parts": [{"type": "text", "content": text}],
            }
            self.put_text(attrs, semconv.INPUT_MESSAGES, content.to_json([message]))
        if plain:
            answer = {
                "role": "assistant",
                "parts": [{"type": "text", "content": plain}],
                "finish_reason": finish_reason,
            }
            self._last_output = content.to_json([answer])
            self.put_text(attrs, semconv.OUTPUT_MESSAGES, self._last_output)

    def _end_turn(self, turn: _Turn) -> None:
        self.put_text(turn.attributes, semconv.TURN_INPUT_TEXT, turn.input_text)
        self.put_text(turn.attributes, semconv.TURN_OUTPUT_TEXT, turn.output_text)
        turn.span.set_attributes(turn.attributes)
        turn.span.end(turn.end_ns)
        names = {semconv.OPERATION: "chat", semconv.PROVIDER: "verl"}
        ids = span_ids(turn.span)
        seconds = (turn.end_ns - turn.start_ns) / 1e9
        self.sdk.histogram(semconv.Metric.TURN_DURATION, seconds, names, ids, "s")
        for kind, name in (("input", semconv.INPUT_TOKENS), ("output", semconv.OUTPUT_TOKENS)):
            if name in turn.attributes:
                value = turn.attributes[name]
                self.sdk.histogram(
                    semconv.Metric.TOKEN_USAGE, value, {**names, "gen_ai.token.type": kind}, ids, "{token}"
                )

    # End ---------------------------------------------------------------------

    def finish(self, attributes: Mapping[str, Any], error: BaseException | None = None) -> None:
        """End the trajectory, after the turns whose content is still being worked out."""
        end_ns = time.time_ns()
        if not state.background.submit(self._finish, dict(attributes), error, end_ns):
            self._finish(dict(attributes), error, end_ns)
        state.flush_soon()

    def _finish(self, attributes: dict[str, Any], error: BaseException | None, end_ns: int) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            if self._decoder is not None:
                waiting.output_text += self._decoder.flush()
            self._end_turn(waiting)
        totals: dict[str, Any] = {
            semconv.TURNS: self.turns,
            semconv.TOOL_CALLS: self.tool_calls,
            semconv.TOOL_ERRORS: self.tool_errors,
            semconv.INPUT_TOKENS: self.input_tokens,
            semconv.OUTPUT_TOKENS: self.output_tokens,
            semconv.FINISH: type(error).__name__ if error is not None else self.finish_reason,
            semconv.POLICY_VERSION_START: self.policy_start,
            semconv.POLICY_VERSION_END: self.policy_end,
        }
        if self._last_output:
            self.put_text(totals, semconv.OUTPUT_MESSAGES, self._last_output)
        totals.update(attributes)
        self.span.set_attributes({name: value for name, value in totals.items() if value is not None})
        if error is not None:
            set_error(self.span, error)
        self.span.end(end_ns)
        labels = {semconv.PARTITION: self.partition}
        metrics = semconv.Metric
        seconds = (end_ns - self.start_ns) / 1e9
        self.sdk.histogram(metrics.TRAJECTORY_DURATION, seconds, labels, self.ids, "s")
        self.sdk.histogram(metrics.TRAJECTORY_TURNS, self.turns, labels, self.ids, "{turn}")
        if self.reward is not None:
            self.sdk.histogram(metrics.TRAJECTORY_REWARD, self.reward, labels, self.ids, "1")


def start(
    sdk: Sdk,
    *,
    agent: str,
    partition: str,
    step: int,
    group: str,
    session: int | str,
    messages: Any = None,
    attributes: Mapping[str, Any] | None = None,
    link_step: bool = True,
    uid: str | None = None,
) -> Trajectory | None:
    """Start a trajectory, or return ``None`` if its group is not selected.

    ``uid`` stands for the group in the trajectory's id where groups are not unique over the run.
    """
    if not selected(sdk, partition, step, group):
        return None
    ids = sdk.run.trajectory(partition, uid or group, session)
    attrs: dict[str, Any] = {
        semconv.SPAN_TYPE: semconv.SpanType.TRAJECTORY,
        semconv.OPERATION: "invoke_agent",
        semconv.AGENT_NAME: agent,
        semconv.STEP: step,
        semconv.PARTITION: partition,
        semconv.GROUP_ID: group,
        semconv.GROUP_INDEX: session,
        semconv.CONVERSATION_ID: f"{group}_{session}",
    }
    attrs.update({name: value for name, value in (attributes or {}).items() if value is not None})
    span = sdk.start_span(f"invoke_agent {agent}", attrs, ids=ids, links=[sdk.run.step(step)] if link_step else ())
    trajectory = Trajectory(sdk, span, ids, partition, step, sdk.run.model)
    trajectory.group, trajectory.session = group, session
    trajectory.prompt_messages = messages
    if messages is not None and sdk.capture:
        text: dict[str, Any] = {}
        trajectory.put_text(text, semconv.INPUT_MESSAGES, content.to_json(content.genai_messages(messages)))
        span.set_attributes(text)
    return trajectory


def selected(sdk: Sdk, partition: str, step: int, group: str) -> bool:
    """Whether this group's trajectories are traced. Every process decides alike, from the ids alone."""
    budget, rolled_out = sdk.settings.log_rollout_traces, sdk.settings.group_size_hint
    if budget < 0:
        return True
    if budget == 0 or rolled_out <= 0:
        return budget > 0
    share = identity.step_context(f"{partition}/{group}", 0, step).span_id / 2**64
    return share < budget / rolled_out
