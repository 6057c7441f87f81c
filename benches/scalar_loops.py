"""Loops of `vectorised` that the compiler left scalar.

    cargo rustc --release --locked -p candle-train --lib -- -C symbol-mangling-version=v0 --emit asm=target/loops.s
    python benches/scalar_loops.py target/loops.s

Prints, for each instruction set, the closures in which at least half of the arithmetic is scalar: scalar and packed
instructions, and where the closure stands. Ends of slices and sums in f64 are scalar by nature; a loop without any
packed instruction is a mistake, most often a number that the closure holds by reference (write `move`) or an index
that is checked.
"""
import re
import subprocess
import sys

FUNCTION = re.compile(r"^(_R\w+):\s*\n(.*?)^\.Lfunc_end", re.S | re.M)
SCALAR = re.compile(r"\bv(?:mul|add|sub|div|max|min|sqrt|f\w+)s[sd]\s")
PACKED = re.compile(r"\bv(?:mul|add|sub|div|max|min|sqrt|f\w+)p[sd]\s")

found = []
for name, body in FUNCTION.findall(open(sys.argv[1]).read()):
    scalar, packed = len(SCALAR.findall(body)), len(PACKED.findall(body))
    if "vectorize" in name and scalar and 2 * packed <= scalar:
        found.append((packed, -scalar, name))
found.sort()
names = subprocess.run(["c++filt"], input="\n".join(name for *_, name in found), capture_output=True, text=True).stdout
for (packed, scalar, _), name in zip(found, names.splitlines()):
    name = re.sub(r"\[[0-9a-f]+\]", "", name)
    level = "AVX-512" if "::V4" in name else "AVX2"
    closure = name.split("simd::Loop<")[-1].rstrip(">")
    print(f"{level:8} {-scalar:4} scalar {packed:4} packed  {closure}")
