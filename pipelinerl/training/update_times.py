"""Time limits for the parts of a weight update, from the timeouts in `weights`."""

from pipelinerl.config import WeightsConfig
from pipelinerl.training.membership.strikes import MOST_FAILURES

END_S = 10.0  # the contract's time for reporting a failed update, after its silence


def rendezvous_s(weights: WeightsConfig, troubled: bool) -> float:
    """Returns the longest time for a group to form, in seconds.

    troubled: True after a broken group, whose timeout a server may first wait for.
    """
    return weights.rendezvous_timeout_s + (weights.bucket_timeout_s if troubled else 0)


def broken_end_s(weights: WeightsConfig) -> float:
    """Returns the longest time until a server reports the end of an update whose broadcast broke."""
    return max(weights.live_timeout_s, weights.bucket_timeout_s + END_S)


def hold_timeout_s(weights: WeightsConfig) -> float:
    """Returns the longest time for which a server without valid weights delays requests, until an update.

    The trainer condemns a server after MOST_FAILURES failed groups, and any group before may succeed. A group
    takes at most its rendezvous, the time before its last bucket, and the wait for its end. A client with a
    shorter timeout closes its connection, which frees the request.
    """
    one_group_s = rendezvous_s(weights, troubled=True) + weights.bucket_timeout_s + broken_end_s(weights)
    return MOST_FAILURES * one_group_s
