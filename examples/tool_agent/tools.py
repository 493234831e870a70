"""The agent's one tool."""

from verl.tools.function_tool import function_tool


@function_tool()
def calc(expression: str) -> str:
    """
    Add whole numbers.

    Args:
        expression: The sum to work out, such as 1+2.
    """
    if expression.endswith("7"):
        # A tool that fails now and then: verl tells the model in words, verl-otel shows it as an error.
        raise ValueError(f"cannot add {expression}")
    return str(sum(int(number) for number in expression.split("+")))
