# The process behind `data.name = "python"`. Requests come through the socket that is its stdin, and samples of the
# user's data set go back through it, each as a frame: a header, JSON, and the bytes of numbers. It needs Python 3.8 and
# nothing but the standard library.
import array
import ctypes
import faulthandler
import fcntl
import importlib
import importlib.util
import inspect
import json
import operator
import os
import random
import re
import select
import signal
import socket
import struct
import sys
import traceback

# Magic, bytes of JSON, bytes behind it.
HEADER = struct.Struct("=4sII")
MAGIC = b"ddpr"
# Libraries with a global random generator that is seeded for each sample.
LIBRARIES = ("numpy", "torch")
# Signals that a terminal or a cluster sends to all processes of a run: the rank decides when it is over.
LEFT_TO_THE_RANK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
MAX_TRACEBACK = 6000
THIS_FILE = "<ddprun>"


class Unusable(Exception):
    """Something that the user's code has or returned, which is told in words, without a traceback."""


class UnknownObject(Unusable):
    """The file does not define the object; `names` are those that it defines."""

    def __init__(self, what, names):
        super().__init__(what)
        self.names = names


# Descriptors and signals


def take_channel():
    """Moves the socket, and the pipe whose other end is the rank's, to descriptors of their own.

    Afterwards stdin is empty and stdout is stderr, so that nothing the user's code reads or prints can do harm.
    """
    channel = socket.socket(fileno=os.dup(0))
    lifeline = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    return channel, lifeline


def end_with_rank(lifeline):
    """Lets the kernel end this process when the rank is gone, however it ended and whatever runs here."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        sys.exit()


# Frames


def receive(channel):
    """The next request; `None` when there will be none any more."""
    header = exactly(channel, HEADER.size)
    if header is None:
        return None
    request = exactly(channel, HEADER.unpack(header)[1])
    return None if request is None else json.loads(request)


def exactly(channel, size):
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        read = channel.recv_into(rest)
        if read == 0:
            return None
        rest = rest[read:]
    return data


def send(channel, answer, body):
    text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    channel.sendall(b"".join([HEADER.pack(MAGIC, len(text), len(body)), text, body]))


# Random numbers


def reproducibly(seed, call):
    """Calls it with all global random generators seeded; again if it was the first to import one of them."""
    while True:
        loaded = [name for name in LIBRARIES if name in sys.modules]
        random.seed(seed)
        if "numpy" in loaded:
            sys.modules["numpy"].random.seed([seed & 0xFFFFFFFF, seed >> 32])
        if "torch" in loaded:
            sys.modules["torch"].default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        result = call()
        if all(name in loaded for name in LIBRARIES if name in sys.modules):
            return result


# Numbers


def as_array(value):
    """The dtype, the shape and the bytes of a list, a buffer, an array or a tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return of_tensor(torch, value)
    if isinstance(value, tuple) and len(value) == 2 and is_buffer(value[0]):
        flat = memoryview(value[0]).cast("B")
        view = memoryview(value[0])
        return of_view(flat.cast(view.format, list(value[1])))
    if isinstance(value, (list, tuple)):
        numbers = array.array("d")
        shape = flatten(value, numbers)
        return "list", shape, numbers.tobytes()
    interface = getattr(value, "__array_interface__", None)
    if isinstance(interface, dict) and isinstance(interface.get("data"), bytes):
        return interface["typestr"][1:], interface["shape"], interface["data"]
    try:
        view = memoryview(value)
    except (TypeError, ValueError) as error:
        raise Unusable(f"is {article(value)}, not a list of numbers, an array or a tensor") from error
    return of_view(view)


def is_buffer(value):
    return isinstance(value, (bytes, bytearray, memoryview, array.array))


def of_view(view):
    form = view.format.lstrip("@=" + ("<" if sys.byteorder == "little" else ">"))
    kinds = {"?": "b", "e": "f", "f": "f", "d": "f"}
    kinds.update(dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"))
    if form not in kinds:
        raise Unusable(f"holds values of the format `{view.format}`, which are not numbers of this machine")
    return f"{kinds[form]}{view.itemsize}", view.shape, view.tobytes()


def of_tensor(torch, tensor):
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    tensor = tensor.contiguous()
    name = str(tensor.dtype).replace("torch.", "")
    kind = "b" if name == "bool" else name[0]
    size = tensor.element_size()
    data = ctypes.string_at(tensor.data_ptr(), size * tensor.numel()) if tensor.numel() else b""
    return f"{kind}{size}", tuple(tensor.shape), data


def flatten(value, numbers):
    """Appends the numbers of nested lists, and returns their shape."""
    if not isinstance(value, (list, tuple)):
        try:
            numbers.append(value)
        except TypeError as error:
            raise Unusable(f"is a list that holds {article(value)}, not numbers") from error
        return ()
    before = len(numbers)
    try:
        numbers.extend(array.array("d", value))
        return (len(value),)
    except TypeError:
        del numbers[before:]
    shapes = {flatten(item, numbers) for item in value}
    if len(shapes) != 1:
        raise Unusable("is a list of lists that differ in length")
    return (len(value), *shapes.pop())


def article(value):
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


# The data set


def load(path):
    """Runs the file as a module of its name, with its folder on the path of imports."""
    with open(path, "rb") as file:
        source = file.read()
    code = compile(source, path, "exec")
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    for name in LIBRARIES:
        # Loaded first, so that it is seeded when the file draws from it.
        imports = re.search(rb"^\s*(import|from)\s+%s\b" % name.encode(), source, re.MULTILINE)
        if imports and importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_loader(name, None, origin=path)

    def run():
        module = importlib.util.module_from_spec(spec)
        module.__file__ = os.path.abspath(path)
        sys.modules[name] = module
        exec(code, module.__dict__)
        return module

    return run


def open_part(module, part, seed, where):
    """Calls the object, and describes what it returned."""
    name, options = part["object"], part["options"]
    make = getattr(module, name, None)
    if not callable(make):
        own = [key for key, value in vars(module).items() if is_own(value, module)]
        raise UnknownObject(f"`{name}` is no class or function of `{shown(module.__file__)}`", own)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        where["stage"] = "options"
        raise Unusable(f"`{name}` does not take these arguments: {error}") from error
    except ValueError:
        pass  # A builtin without a signature.
    data = reproducibly(seed, lambda: make(**options))
    for method, use in (("__len__", "len()"), ("__getitem__", "[index]")):
        if not hasattr(type(data), method):
            raise Unusable(f"`{name}` gives {article(data)} without `{use}`")
    length = len(data)
    labels = class_labels(data, length)
    described = {"len": length, "classes": class_names(data), "labels": len(labels)}
    fingerprint = getattr(data, "fingerprint", None)
    described["fingerprint"] = str(fingerprint()) if callable(fingerprint) else None
    return data, described, labels.tobytes()


def is_own(value, module):
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def class_names(data):
    """Names in the order of labels, from a list or a number."""
    classes = getattr(data, "classes", None)
    if callable(classes):
        classes = classes()
    if classes is None:
        return None
    try:
        return [str(label) for label in range(operator.index(classes))]
    except TypeError:
        return [str(name) for name in classes]


def class_labels(data, length):
    """The class of each sample, if the attribute `targets` holds that, as in torchvision."""
    none = array.array("q")
    try:
        targets = getattr(data, "targets", None)
        if isinstance(targets, (list, tuple)):
            labels = array.array("q", targets)
        else:
            dtype, shape, raw = as_array(targets)
            if dtype[0] not in "iu" or len(shape) != 1:
                return none
            labels = array.array("q", memoryview(raw).cast(array_code(dtype)).tolist())
    except (TypeError, OverflowError, Unusable):
        return none
    return labels if len(labels) == length else none


def array_code(dtype):
    code = {"1": "b", "2": "h", "4": "i", "8": "q"}[dtype[1]]
    return code.upper() if dtype[0] == "u" else code


def own_modules(path):
    """The file, and what it imports from its folder: changes of these are changes of the data."""
    folder = os.path.dirname(os.path.abspath(path)) + os.sep
    found = {os.path.abspath(path)}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(folder) and file.endswith(".py") and "-packages" not in file:
            found.add(file)
    return sorted(found)


def sample(data, index):
    """One sample: its header and its bytes."""
    item = data[index]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise Unusable(f"is {article(item)}, not a pair of an input and its target")
    try:
        dtype, shape, raw = as_array(item[0])
    except Unusable as error:
        raise Unusable(f"has an input that {error}") from error
    try:
        target, numbers = as_target(item[1])
    except Unusable as error:
        raise Unusable(f"has a target that {error}") from error
    return {"sample": {"dtype": dtype, "shape": list(shape), "target": target}}, raw + numbers


def as_target(value):
    """A class, or one or several numbers."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    try:
        return {"class": operator.index(value)}, b""
    except TypeError:
        pass
    if isinstance(value, str):
        raise Unusable("is a str: a class is an int")
    dtype, shape, raw = as_array([value] if isinstance(value, float) else value)
    if len(shape) != 1:
        raise Unusable(f"has the shape {list(shape)}, but is to be a class (int), a number or a flat list of numbers")
    return {"numbers": {"dtype": dtype, "n": shape[0]}}, raw


# Errors


def failure(error, where):
    answer = {"stage": where["stage"], "part": where["part"], "names": getattr(error, "names", [])}
    if isinstance(error, Unusable):
        return {"failed": {**answer, "what": str(error), "raised": False, "traceback": None}}
    described = traceback.TracebackException(type(error), error, error.__traceback__)
    chained = described
    while chained is not None:
        chained.stack[:] = [frame for frame in chained.stack if frame.filename != THIS_FILE]
        chained = chained.__cause__ or chained.__context__
    last = traceback.format_exception_only(type(error), error)[-1].strip()
    place = place_of(error, described)
    what = last.splitlines()[0][:300] + (f" ({place})" if place else "")
    text = "".join(described.format()).rstrip()[-MAX_TRACEBACK:]
    return {"failed": {**answer, "what": what, "raised": True, "traceback": text}}


def place_of(error, described):
    """The line of the user's own code in which it happened, else the last line."""
    if isinstance(error, SyntaxError):
        return f"{shown(error.filename or '')}, line {error.lineno}"
    own = [frame for frame in described.stack if "-packages" not in frame.filename and "lib/python" not in frame.filename]
    frames = own or described.stack
    return f"{shown(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""


def shown(path):
    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else path


# Requests


def answer(request, parts, where):
    if "open" not in request:
        asked = request["load"]
        data = parts[asked["part"]]
        where.update(stage="sample", part=asked["part"])
        return reproducibly(asked["seed"], lambda: sample(data, asked["index"]))
    asked = request["open"]
    where.update(stage="file", part=0)
    module = reproducibly(asked["seed"], load(asked["file"]))
    opened, labels = [], []
    for number, part in enumerate(asked["parts"]):
        where.update(stage="object", part=number)
        data, described, own_labels = open_part(module, part, asked["seed"], where)
        parts.append(data)
        opened.append(described)
        labels.append(own_labels)
    version = ".".join(map(str, sys.version_info[:3]))
    described = {"version": version, "program": sys.executable, "modules": own_modules(asked["file"]), "parts": opened}
    return {"opened": described}, b"".join(labels)


def serve():
    channel, lifeline = take_channel()
    end_with_rank(lifeline)
    for number in LEFT_TO_THE_RANK:
        signal.signal(number, lambda *_: None)
    # The rank asks in this way where a process is that does not answer.
    faulthandler.register(signal.SIGUSR2, file=channel, all_threads=False)
    # As in torch's DataLoader: there is a process for each core already.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parts, where = [], {}
    while True:
        request = receive(channel)
        if request is None:
            break
        try:
            told, body = answer(request, parts, where)
        except BaseException as error:  # `sys.exit()` too.
            told, body = failure(error, where), b""
        send(channel, told, body)


try:
    serve()
except (BrokenPipeError, ConnectionResetError):
    pass  # The rank is gone.
