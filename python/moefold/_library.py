"""libmoefold.so behind ctypes: where it is, and one call of it."""

import ctypes
import json
import operator
import os
import threading

DONE, FAILED, USAGE, INFEASIBLE, TOLERANCE, INTERRUPTED = 0, 1, 2, 3, 4, 130

_HERE = os.path.dirname(os.path.abspath(__file__))
_SONAME = "libmoefold.so.0"


def _places():
    """Where the library is looked for, first to last: what MOEFOLD_LIBRARY says, beside this file (a wheel), in
    the build folder of a source tree, where the system keeps libraries."""
    said = os.environ.get("MOEFOLD_LIBRARY")
    if said:
        return [said]
    tree = os.path.join(_HERE, "..", "..", "build", _SONAME)
    return [p for p in (os.path.join(_HERE, _SONAME), tree) if os.path.exists(p)] + [_SONAME]


def _load():
    place = _places()[0]
    try:
        library = ctypes.CDLL(place)
    except OSError as e:
        raise ImportError(
            "%s: install the wheel (make wheel) or run `make` in the source tree; MOEFOLD_LIBRARY names another library" % e
        ) from e
    text = ctypes.POINTER(ctypes.c_void_p)
    library.moefold_call.restype = ctypes.c_int
    library.moefold_call.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), text, text]
    library.moefold_free.restype = None
    library.moefold_free.argtypes = [ctypes.c_void_p]
    library.moefold_version.restype = ctypes.c_char_p
    library.moefold_version.argtypes = []
    return library


_lock = threading.Lock()
_loaded = None


def library():
    """The library, loaded when it is first needed."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
    return _loaded


def _plain(value):
    """What json does not know: paths, numbers of numpy, sets of names."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "dtype", None) == bool:
        return bool(value)
    if hasattr(value, "__index__"):
        return operator.index(value)
    if hasattr(value, "__float__"):
        return float(value)
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError("an option of moefold cannot be of the type %s" % type(value).__name__)


def _text(command, request):
    """The request as JSON. What cannot be told is refused with the option that it was given to."""
    parts = []
    for key, value in request.items():
        try:
            parts.append("%s: %s" % (json.dumps(key), json.dumps(value, default=_plain, allow_nan=False)))
        except (TypeError, ValueError, RecursionError) as e:
            raise type(e)("moefold %s: --%s: expected what JSON can hold, got %.100r (%s)" % (command, key, value, e)) from None
    return ("{%s}" % ", ".join(parts)).encode()


def _take(library_, pointer):
    # A message may quote bytes of a file that are no UTF-8.
    text = ctypes.string_at(pointer.value).decode(errors="replace") if pointer.value else ""
    library_.moefold_free(pointer)
    return text


def call(command, request):
    """Runs a command; returns (status, text of the JSON, messages).

    The search runs beside the thread that asks for it, so that Ctrl-C reaches it: it then ends early, with what is
    best so far and the status INTERRUPTED.
    """
    lib = library()
    text = _text(command, request)
    stop = ctypes.c_int(0)
    answer, messages = ctypes.c_void_p(), ctypes.c_void_p()
    status = [FAILED]
    ended = threading.Event()

    def work():
        try:
            status[0] = lib.moefold_call(
                command.encode(), text, ctypes.byref(stop), ctypes.byref(answer), ctypes.byref(messages)
            )
        finally:
            ended.set()

    if threading.current_thread() is threading.main_thread():
        threading.Thread(target=work, name="moefold " + command).start()
        while not ended.is_set():
            try:
                ended.wait()
            except KeyboardInterrupt:
                stop.value = 1
    else:
        work()
    if stop.value != 0 and status[0] == DONE:
        status[0] = INTERRUPTED  # it was through already: whoever pressed Ctrl-C is to hear of it
    return status[0], _take(lib, answer), _take(lib, messages)


def version():
    return library().moefold_version().decode()
