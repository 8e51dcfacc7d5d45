# SPDX-License-Identifier: Apache-2.0
"""Text that ships with CPython: the language help topics, the library's docstrings in place under
their signatures, its comments, and the docstrings of built-in modules. Everything is cut into
passages at paragraph boundaries; 6 % of them, chosen by a hash of their name, are held out."""
import ast
import hashlib
import importlib
import inspect
import io
import pickle
import re
import sysconfig
import tokenize
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SKIP = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__",
        "turtledemo", "ensurepip", "encodings", "pydoc_data", "config"}
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
HELD_OUT, PASSAGE = 0.06, 4000
BUILT_IN = ("_collections", "_datetime", "_decimal", "_functools", "_io", "_pickle", "_socket",
            "_sre", "_ssl", "_struct", "array", "builtins", "itertools", "marshal", "math", "posix",
            "select", "time", "zlib")


def held_out(name):
    """The same answer on every machine: 6 % of the names."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 < HELD_OUT


def _skeleton(tree):
    """A module without its code: the docstrings as they ship, under their signatures."""
    parts = []

    def visit(node, depth):
        indent = "    " * depth
        for child in node.body:
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                doc = ast.get_docstring(child, clean=False)
                if isinstance(child, ast.ClassDef):
                    bases = ", ".join(map(ast.unparse, child.bases))
                    sign = f"class {child.name}({bases}):" if bases else f"class {child.name}:"
                else:
                    sign = f"def {child.name}({ast.unparse(child.args)}):"
                if doc and len(doc) > 20:
                    text = doc.expandtabs().rstrip()
                    parts.append(f'{indent}{sign}\n{indent}    """{text}"""')
                if isinstance(child, ast.ClassDef):
                    visit(child, depth + 1)

    doc = ast.get_docstring(tree, clean=False)
    if doc:
        parts.append(f'"""{doc.expandtabs().strip()}"""')
    visit(tree, 0)
    return parts


def _comments(source):
    """Runs of full-line comments of at least 60 characters."""
    run, out = [], []
    for tok in tokenize.generate_tokens(io.StringIO(source).readline):
        if tok.type == tokenize.COMMENT and tok.line.strip().startswith("#"):
            run.append(re.sub(r"^#+ ?", "", tok.string).rstrip())
        elif tok.type not in (tokenize.NL, tokenize.COMMENT):
            text = "\n".join(run).strip()
            if len(text) >= 60:
                out.append(text)
            run = []
    return out


def _builtin_pages(name):
    """Docstrings of a module written in C."""
    module, parts = importlib.import_module(name), []
    parts.append(inspect.getdoc(module) or "")
    for key, obj in sorted(vars(module).items()):
        doc = inspect.getdoc(obj) if callable(obj) and not key.startswith("_") else None
        if doc and len(doc) > 20:
            parts.append(f"{key}\n{doc}")
            if inspect.isclass(obj) and not issubclass(obj, BaseException):
                for method, value in sorted(vars(obj).items()):
                    text = inspect.getdoc(value) if callable(value) else None
                    if text and len(text) > 20 and not method.startswith("__"):
                        parts.append(f"{key}.{method}\n{text}")
    return parts


def _sources():
    """(name, paragraphs) of every topic, module, and comment collection, in a fixed order."""
    from pydoc_data.topics import topics
    for key, text in sorted(topics.items()):
        yield "topic:" + key, text.split("\n\n")
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        rel = path.relative_to(root)
        if any(p in SKIP or p.startswith("config-") for p in rel.parts):
            continue
        source = path.read_text("utf8", errors="replace")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        name = ".".join(rel.with_suffix("").parts)
        yield "module:" + name, [p for part in _skeleton(tree) for p in part.split("\n\n")]
        yield "comments:" + name, _comments(source)
    for name in BUILT_IN:
        yield "module:" + name, [p for part in _builtin_pages(name) for p in part.split("\n\n")]


def documents():
    """[(name, held, text)]: passages of about 4,000 characters. A paragraph that occurred before is
    dropped, and so are held-out ones that share 30 % of their 8-word runs with training text."""
    passages, seen = [], set()
    for name, parts in _sources():
        kept, size, number = [], 0, 0
        for part in parts:
            key = " ".join(part.lower().split())
            if not key or len(part) > 60 and key in seen:
                continue
            seen.add(key)
            kept.append(part)
            size += len(part)
            if size > PASSAGE:
                passages.append((f"{name}#{number}", kept))
                kept, size, number = [], 0, number + 1
        passages.append((f"{name}#{number}", kept))
    out, grams = [], set()
    for held in (False, True):
        for name, parts in passages:
            if held_out(name) != held or held and name.startswith("comments:"):
                continue
            if held:
                parts = [p for p in parts if _overlap(p, grams) < 0.3]
            text = "\n\n".join(parts).strip("\n")
            if len(text) >= (500 if held else 100):
                out.append((name, held, text))
                if not held:
                    grams |= _grams(text)
    return out


def _grams(text):
    words = re.findall(r"\w+", text.lower())
    return {hash(tuple(words[i:i + 8])) for i in range(len(words) - 7)}


def _overlap(text, grams):
    own = _grams(text)
    return len(own & grams) / len(own) if own else 0.0


def train_tokenizer(texts, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[BOS, EOS],
                                  initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator(texts, trainer)
    return tok


def prepare(work, vocab_size):
    """Tokenizer, training documents as id arrays, held-out [(name, text, ids)]; kept in `work`."""
    tok_file, cache = Path(work) / "tokenizer.json", Path(work) / "documents.pkl"
    if tok_file.exists() and cache.exists():
        return Tokenizer.from_file(str(tok_file)), *pickle.loads(cache.read_bytes())
    docs = documents()
    tok = train_tokenizer([t for _, held, t in docs if not held], vocab_size)
    ids = [enc.ids for enc in tok.encode_batch([t for _, _, t in docs])]
    train = [np.array([0, *i, 1], dtype=np.int16) for i, (_, held, _) in zip(ids, docs) if not held]
    held_docs = [(name, text, i) for i, (name, held, text) in zip(ids, docs) if held]
    tok.save(str(tok_file))
    cache.write_bytes(pickle.dumps((train, held_docs)))
    return tok, train, held_docs


class Batches:
    """Endless batches of windows of one stream; the documents are shuffled anew in each pass."""

    def __init__(self, docs, seed):
        self.rng, self.docs, self.passes = np.random.default_rng(seed), docs, 0
        self.stream, self.at = np.zeros(0, dtype=np.int16), 0

    def _take(self, n):
        if self.at + n > len(self.stream):
            order = self.rng.permutation(len(self.docs))
            self.stream = np.concatenate([self.docs[i] for i in order])
            self.at, self.passes = int(self.rng.integers(0, 256)), self.passes + 1
        row = self.stream[self.at:self.at + n]
        self.at += n - 4  # a window's last four tokens start the next one
        return row

    def next(self, batch, length):
        return np.stack([self._take(length + 4) for _ in range(batch)]).astype(np.int64)
