"""Asks the servers that run already (`inference.urls`) for what they serve, before the run starts."""

import urllib.error
import urllib.request

from pydantic import ValidationError

from contracts.inference import ContractInfo
from contracts.support.messages import one_line
from pipelinerl.errors import PlanError

ANSWER_S = 30.0


def models_of(urls: list[str], token: str, is_resumed: bool) -> dict[str, str]:
    """Returns the name of each server's model, by URL. Raises PlanError for a server that cannot be used.

    is_resumed: True if its run may be this one.
    """
    models = {}
    for url in urls:
        contract = _contract(url, token)
        busy = contract.process.running + contract.process.waiting
        if contract.run is not None and busy and not is_resumed:
            raise PlanError(
                f"inference.urls: {url} works for another run, with {busy} completions under way; end that"
            )
        models[url] = contract.model
    return models


def _contract(url: str, token: str) -> ContractInfo:
    request = urllib.request.Request(f"{url}/contract", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            return ContractInfo.model_validate_json(response.read())
    except urllib.error.HTTPError as error:
        if error.code == 401:
            why = "it refuses the token: set PIPELINERL_TOKEN to the one that it was started with"
        else:
            why = f"GET /contract is answered with {error.code}"
    except ValidationError as error:
        why = f"its /contract is none: {one_line(error)}"
    except OSError as error:
        why = f"it does not answer: {one_line(error)}; start it first, or look at http:// and https://"
    raise PlanError(f"inference.urls: {url}: {why}")
