"""How long the parts of a weight update may take, from the timeouts of `weights`."""

from pipelinerl.config import WeightsConfig
from pipelinerl.training.server_strikes import MOST_FAILURES

END_S = 10.0  # in which the contract wants a failed update reported, after its silence


def rendezvous_s(weights: WeightsConfig, troubled: bool) -> float:
    """How long a group may take to form.

    After a broken one a server may first wait that one's silence out.
    """
    return weights.rendezvous_timeout_s + (weights.bucket_timeout_s if troubled else 0)


def broken_end_s(weights: WeightsConfig) -> float:
    """How long a server may take to report the end of an update whose broadcast broke."""
    return max(weights.live_timeout_s, weights.bucket_timeout_s + END_S)


def hold_timeout_s(weights: WeightsConfig) -> float:
    """How long a server whose weights were lost holds its requests for the next complete update.

    The trainer gives a server up after so many failed groups; until then each may be the one that succeeds.
    One takes at most its rendezvous, the silence before its last bucket, and the wait for its end. A client
    that waits less closes its connection, which frees the request.
    """
    one_group_s = rendezvous_s(weights, troubled=True) + weights.bucket_timeout_s + broken_end_s(weights)
    return MOST_FAILURES * one_group_s
