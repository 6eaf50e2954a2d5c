"""vLLM's tool support, as its options configure it: parsing calls from text, and forcing calls."""

from argparse import Namespace
from collections.abc import Sequence

from vllm import envs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

from contracts.errors import ContractError, ErrorCode


def capabilities_of_tools(args: Namespace) -> list[str]:
    """Returns the capabilities that follow from vLLM's options for tools."""
    if not args.enable_auto_tool_choice:
        return []
    return ["tools", "forced_calls"] if _can_force(args.tool_call_parser) else ["tools"]


def _can_force(parser: str) -> bool:
    """Returns True if vLLM can constrain sampling to calls in the format of this parser."""
    form = ToolParserManager.get_tool_parser(parser)
    in_its_own_form = form.structural_tag_model is not None and envs.VLLM_ENFORCE_STRICT_TOOL_CALLING
    return form.supports_required_and_named or in_its_own_form


def check_tools(asked: ChatCompletionRequest, capabilities: Sequence[str]) -> None:
    """Raises ContractError if the request needs calls that vLLM cannot parse or force."""
    if not asked.tools or asked.tool_choice == "none":
        return
    if "tools" not in capabilities:
        why = "tools: needs a server with --enable-auto-tool-choice and --tool-call-parser"
        raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, why, "tools")
    if asked.tool_choice not in (None, "auto") and "forced_calls" not in capabilities:
        why = "tool_choice: this server takes auto and none; its --tool-call-parser cannot force a call"
        raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, why, "tool_choice")
