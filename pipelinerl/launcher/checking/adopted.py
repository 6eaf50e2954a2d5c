"""Asks the servers that run already (`inference.urls`) for what they serve, before the run starts."""

import urllib.error
import urllib.request

from pydantic import ValidationError

from contracts.inference import ContractInfo
from contracts.support.messages import one_line
from pipelinerl.errors import PlanError

ANSWER_S = 30.0


def models_of(urls: list[str], token: str) -> dict[str, str]:
    """Returns the name of each server's model, by URL. Raises PlanError for a server that cannot be used."""
    return {url: _contract(url, token).model for url in urls}


def _contract(url: str, token: str) -> ContractInfo:
    request = urllib.request.Request(f"{url}/contract", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            return ContractInfo.model_validate_json(response.read())
    except urllib.error.HTTPError as error:
        if error.code == 401:
            why = "it wants a token: set PIPELINERL_TOKEN to the one that it was started with"
        else:
            why = f"GET /contract is answered with {error.code}"
    except ValidationError as error:
        why = f"its /contract is none: {one_line(error)}"
    except OSError as error:
        why = f"it does not answer: {one_line(error)}; start it first"
    raise PlanError(f"inference.urls: {url}: {why}")
