"""What a program and its children did to the files below a folder, and which of it was on the disk when, by strace."""

import ast
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field

WRITES = ("write", "writev", "pwrite64", "pwritev", "sendfile", "copy_file_range", "ftruncate", "fallocate")
NAMES = "openat,truncate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat"
CALLS = ",".join([*WRITES, NAMES, "fsync", "fdatasync"])
STRACE = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "20000", "-e", f"trace={CALLS}"]
LINE = re.compile(r"(\d+) +(?:<\.\.\. \w+ resumed>(?P<rest>.*)|(?P<call>\w+\(.*))")
ENDED = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?|(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>|([^",\s]+)')
EXCHANGE = "RENAME_EXCHANGE"


def why_not():
    """Why nothing can be traced here, or an empty string."""
    if shutil.which("strace") is None:
        return "needs strace"
    done = subprocess.run([*STRACE, "-o", "/dev/null", "true"], capture_output=True, text=True)
    return f"strace may not trace: {done.stderr.strip()}" if done.returncode else ""


@dataclass
class Span:
    """The lines of a trace between which something happened."""

    begin: int
    end: int


@dataclass
class Call(Span):
    """A system call that succeeded; its arguments are paths, texts (bytes) and words, in their order."""

    name: str
    arguments: list
    cut: bool  # whether strace left out the end of a text

    @property
    def flags(self):
        return " ".join(argument for argument in self.arguments if isinstance(argument, str))


@dataclass
class Opened:
    """An open file or folder among the arguments of a call."""

    path: str


def calls_of(trace):
    """The calls of a trace in the order in which they ended."""
    begun = {}
    with trace.open(errors="surrogateescape") as lines:
        for number, line in enumerate(lines):
            if not (match := LINE.match(line)):
                continue  # a signal, or the end of a process
            process, begin = match[1], number
            text = match["call"]
            if text is None:
                begin, text = begun.pop(process)
                text += match["rest"]
            elif text.rstrip().endswith("<unfinished ...>"):
                begun[process] = number, text.rstrip().removesuffix("<unfinished ...>")
                continue
            if (ended := ENDED.match(text)) and int(ended[3]) >= 0:
                yield Call(begin, number, ended[1], *arguments_of(ended[2]))


def arguments_of(text):
    found, cut = [], False
    for quoted, dots, opened, word in ARGUMENT.findall(text):
        cut |= bool(dots)
        if opened:
            found.append(Opened(os.fsdecode(ast.literal_eval(f'b"{opened}"'))))
        elif word:
            found.append(word)
        else:
            found.append(ast.literal_eval(f'b"{quoted}"'))
    return found, cut


def paths_of(call):
    """The absolute paths that a call is about; a relative one without a folder is left out."""
    paths, folder = [], ""
    for argument in call.arguments:
        if isinstance(argument, Opened):
            folder = argument.path
        elif isinstance(argument, bytes):
            path = os.path.join(folder, os.fsdecode(argument))
            paths += [os.path.normpath(path)] if path.startswith("/") else []
            folder = ""
    return paths


@dataclass
class File:
    """A file or a folder: when its content (a folder: the names in it) last changed, and its syncs."""

    changed: Span
    syncs: list = field(default_factory=list)

    def is_synced(self, change, before):
        return any(sync.begin > change.end and sync.end < before for sync in self.syncs)


class Disk:
    """The files below a folder that a trace has changed so far."""

    def __init__(self, root):
        self.root = str(root)
        self.files, self.names = {self.root: File(Span(-1, -1))}, {}  # path -> its file; -> the last change of the name

    def below(self, path):
        return [each for each in self.files if each == path or each.startswith(f"{path}/")]

    def lacking(self, path, before):
        """What of a file, or of a folder and all in it, and of the names that lead to it, a power loss would take."""
        lacking = []
        for each in self.below(path):
            if not self.files[each].is_synced(self.files[each].changed, before):
                lacking.append(f"content of {each}")
        names = {*self.below(path)}
        while path != self.root:
            names.add(path)
            path = os.path.dirname(path)
        return lacking + [f"name {each}" for each in sorted(names) if not self.has_name(each, before)]

    def has_name(self, path, before):
        change = self.names.get(path)
        folder = self.files.get(os.path.dirname(path))
        return change is None or (folder is not None and folder.is_synced(change, before))

    def apply(self, call):
        """Does what a call did; returns the paths below the root that it made or changed, and those it removed."""
        if call.name in ("fsync", "fdatasync"):
            if file := self.files.get(call.arguments[0].path):
                file.syncs.append(call)
            return [], []
        if call.name in WRITES:
            opened = [argument.path for argument in call.arguments if isinstance(argument, Opened)]
            path = opened[1 if call.name == "copy_file_range" else 0]
            return (self._write(path, call), []) if self._is_below(path) else ([], [])
        paths = paths_of(call)
        if not any(map(self._is_below, paths)):
            return [], []
        match re.sub("at2?$", "", call.name):
            case "open":
                if paths[0] not in self.files and "O_CREAT" in call.flags:
                    self._name(paths[0], call)
                elif "O_TRUNC" not in call.flags:
                    return [], []
                return self._write(paths[0], call), []
            case "mkdir" | "symlink":
                self._name(paths[-1], call)
                return self._write(paths[-1], call), []
            case "truncate":
                return self._write(paths[0], call), []
            case "link":
                self._name(paths[1], call)
                self.files[paths[1]] = self.files.setdefault(paths[0], File(Span(-1, -1)))
                return [paths[1]], []
            case "rename":
                return self._rename(*paths, call)
            case "unlink" | "rmdir":
                self._name(paths[0], call)
                self.files.pop(paths[0], None)
                return [], [paths[0]]
        raise AssertionError(call)

    def _rename(self, old, new, call):
        moved = {new + path[len(old) :]: self.files.pop(path) for path in self.below(old)}
        back = {old + path[len(new) :]: self.files.pop(path) for path in self.below(new)}
        self.files |= moved | (back if EXCHANGE in call.flags else {})
        for path in (old, new):
            self._name(path, call)
        return [new], [old]

    def _is_below(self, path):
        return path.startswith(f"{self.root}/")

    def _write(self, path, call):
        self.files.setdefault(path, File(call)).changed = call
        return [path]

    def _name(self, path, call):
        self.names[path] = call
        if folder := self.files.get(os.path.dirname(path)):
            folder.changed = call
