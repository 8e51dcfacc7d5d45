# SPDX-License-Identifier: Apache-2.0
"""What only the models need, and the sentence that says so where it is missing."""
MODELS = ("torch", "safetensors", "tokenizers")  # the extra of the same name


def needs(what: str, missing: str) -> str:
    """``what`` is the name of what was asked for, ``missing`` the module that is not there."""
    return f"{what} needs {missing}: pip install 'dsv4spec[models]'"
