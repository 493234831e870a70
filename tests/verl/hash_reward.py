"""A reward that is another for every answer: prompts differ in it at every step, and a single changed token shows."""

import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return zlib.crc32(solution_str.encode()) / 2**32
