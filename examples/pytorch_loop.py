"""A plain PyTorch policy-gradient loop, seen by verl-otel: `verl-otel run -- python examples/pytorch_loop.py`.

The policy picks one of four numbers; a tool checks it; the reward is whether it was the right one.
"""

import torch

import verl_otel

STEPS, GROUP, ANSWER = 5, 8, 3


@verl_otel.tool_call("check")
def check(choice: int) -> str:
    return "right" if choice == ANSWER else "wrong"


def roll_out(policy: torch.nn.Parameter, index: int) -> tuple:
    prompt = "Which of 0, 1, 2, 3 is the smallest odd prime?"
    with verl_otel.trajectory("chooser", group="prime", index=index, inputs=prompt, group_size=GROUP) as trajectory:
        with verl_otel.turn() as turn:
            choice = torch.distributions.Categorical(logits=policy).sample()
            turn.set_output(str(choice.item()), input_tokens=12, output_tokens=1, finish_reason="stop")
        score = float(check(choice.item()) == "right")
        verl_otel.reward(score, right=score)
        trajectory.set_output(str(choice.item()))
    return choice, score, trajectory


def main() -> None:
    torch.manual_seed(0)
    policy = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.Adam([policy], lr=0.5)
    verl_otel.init(project="examples", experiment="pytorch-loop", config={"lr": 0.5, "steps": STEPS})
    for step in range(1, STEPS + 1):
        with verl_otel.training_step(step):
            with verl_otel.phase("gen"):
                rollouts = [roll_out(policy, index) for index in range(GROUP)]
            scores = torch.tensor([score for _, score, _ in rollouts])
            advantages = (scores - scores.mean()) / (scores.std() + 1e-6)
            with verl_otel.phase("update_actor"):
                chosen = torch.log_softmax(policy, 0)[torch.stack([choice for choice, _, _ in rollouts])]
                loss = -(advantages * chosen).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for (_, _, trajectory), advantage in zip(rollouts, advantages.tolist(), strict=True):
                trajectory.trained(step, advantage=advantage)
            verl_otel.track_metric({"critic/score/mean": scores.mean(), "actor/loss": loss}, step=step)
    verl_otel.shutdown()


if __name__ == "__main__":
    main()
