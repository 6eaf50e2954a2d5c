"""Time limits for the parts of a weight update, from the timeouts in `weights`."""

from pipelinerl.config import WeightsConfig
from pipelinerl.training.membership.strikes import MOST_FAILURES

END_S = 10.0  # the contract's time for reporting a failed update, after its silence


def rendezvous_s(weights: WeightsConfig, troubled: bool) -> float:
    """Returns how long a group may take to form.

    After a broken group, a server may first wait for that group's timeout.
    """
    return weights.rendezvous_timeout_s + (weights.bucket_timeout_s if troubled else 0)


def broken_end_s(weights: WeightsConfig) -> float:
    """Returns how long a server may take to report the end of an update whose broadcast broke."""
    return max(weights.live_timeout_s, weights.bucket_timeout_s + END_S)


def hold_timeout_s(weights: WeightsConfig) -> float:
    """Returns how long a server whose weights were lost holds its requests for the next complete update.

    The trainer gives a server up after MOST_FAILURES failed groups, and each until then may succeed. A group
    takes at most its rendezvous, the silence before its last bucket, and the wait for its end. A client with
    a shorter timeout closes its connection, which frees the request.
    """
    one_group_s = rendezvous_s(weights, troubled=True) + weights.bucket_timeout_s + broken_end_s(weights)
    return MOST_FAILURES * one_group_s
