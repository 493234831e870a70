"""Tools of verl's tool agent. verl turns every failure into text for the model; here it stays a failure."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from verl_otel.instrumentation import patch
from verl_otel.telemetry import guard, trajectories
from verl_otel.telemetry.tool_calls import ToolCall

_call: ContextVar[ToolCall | None] = ContextVar("verl_otel_tool_call", default=None)
_hooked_classes: set[type] = set()
# How verl words, for the model, what went wrong before or around a tool.
_REFUSALS = (
    ("Unknown function '", "unknown_tool"),
    ("Invalid JSON in arguments for '", "invalid_arguments"),
    ("Error executing tool '", "tool_error"),
)


async def call_tool(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_call_tool(tool_call, tools_kwargs, agent_data)`` → ``(ToolResponse, reward, metrics)``."""
    trajectory = trajectories.current.get()
    if trajectory is None:
        return await wrapped(*args, **kwargs)
    call: ToolCall | None = None
    with guard.guarded("tools"):
        asked = args[0] if args else kwargs["tool_call"]
        agent_data = args[2] if len(args) > 2 else kwargs.get("agent_data")
        tools = getattr(agent_data, "_active_tools", None) or getattr(instance, "tools", {})
        _hook_class(type(tools.get(asked.name)))
        arguments = asked.arguments if isinstance(asked.arguments, str) else str(asked.arguments)
        call = ToolCall(trajectory, str(asked.name), arguments, getattr(asked, "tool_call_id", None))
    if call is None:
        return await wrapped(*args, **kwargs)
    token = _call.set(call)
    try:
        result = await wrapped(*args, **kwargs)
    except BaseException as error:
        with guard.guarded("tools"):
            call.fail(error)
            call.finish("")
        raise
    finally:
        _call.reset(token)
    with guard.guarded("tools"):
        response, reward = result[0], result[1]
        text = getattr(response, "text", None) or ""
        if not call.error_type:
            for start, kind in _REFUSALS:
                # A tool may well answer with such words; then its own body ran through without an error.
                if text.startswith(start) and not call.returned:
                    call.refuse(kind, text)
        call.finish(_describe(response, text), reward)
    return result


def _describe(response: Any, text: str) -> str:
    media = [f"[{kind}]" for kind in ("image", "video") if getattr(response, kind, None)]
    return " ".join([*media, text]) if media else text


def _hook_class(tool: type) -> None:
    """Hook ``execute`` where a ``BaseTool`` subclass defines it: the base class's own is never called."""
    if tool in _hooked_classes or not hasattr(tool, "execute"):
        return
    for owner in tool.__mro__:
        if "execute" in vars(owner):
            if owner not in _hooked_classes:
                _hooked_classes.add(owner)
                patch.wrap(owner, "execute", tool_body)
            break
    _hooked_classes.add(tool)


async def tool_body(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """The tool itself, where what it raises can still be seen."""
    call = _call.get()
    try:
        result = await wrapped(*args, **kwargs)
    except BaseException as error:
        if call is not None:
            with guard.guarded("tools"):
                call.fail(error)
        raise
    if call is not None:
        call.returned = True
    return result
