"""The reward: something a tiny model can get better at, and whether the answer is right beside it."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    digits = sum(char.isdigit() for char in solution_str)
    return {"score": min(1.0, digits / 10), "acc": float(ground_truth in solution_str)}
