"""What the machine code of a kernel executes: its loops, the instructions of one pass, the loads under way.

Reads what `cuobjdump -sass` prints. Counts are upper bounds: of the ways through a loop the longest one counts, and a
predicated instruction counts whether it does anything or not.
"""
import dataclasses
import re

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
VECTOR_LOAD = "LDG.E.128"
COPY = re.compile(r"LDGSTS\b.*\.128$")  # from global to shared memory, without registers


@dataclasses.dataclass
class Instruction:
    address: int
    predicate: str | None
    opcode: str
    operands: str

    def branches_to(self):
        """The address of the next instruction if the branch is taken; None: no branch."""
        if self.opcode.split(".")[0] not in ("BRA", "BRX", "JMP"):
            return None
        target = re.search(r"\b0x([0-9a-f]+)$", self.operands)
        if not target:
            raise ValueError(f"a branch to a computed address: {self}")
        return int(target.group(1), 16)

    def ends_here(self):
        """Whether the next instruction in memory is never executed after this one."""
        name, *modifiers = self.opcode.split(".")
        if name not in ("BRA", "EXIT", "RET", "JMP") or {"DIV", "CONV"} & set(modifiers):
            return False
        return self.predicate is None and not re.search(r"\bU?P\d", self.operands)

    def registers(self):
        """The numbers of the registers that the operands name."""
        return {int(name) for name in re.findall(r"\bR(\d+)", self.operands)}


def functions(listing):
    """{mangled name: [Instruction]} of a disassembly."""
    found = {}
    for part in listing.split("Function : ")[1:]:
        lines = part.split("\n")
        code = []
        for line in lines[1:]:
            match = INSTRUCTION.match(line)
            if match:
                code.append(Instruction(int(match.group(1), 16), match.group(2), match.group(3), match.group(4)))
        found[lines[0].strip()] = code
    return found


class Loop:
    """A loop, from its first instruction to the branch back to it."""

    def __init__(self, code, first, last):
        self.body = code[first:last + 1]
        self.begin, self.end = self.body[0].address, self.body[-1].address

    def contains(self, other):
        return self is not other and self.begin <= other.begin and other.end <= self.end

    def longest_pass(self):
        """The instructions of the longest way from the first instruction to the branch back. Raises ValueError if the
        loop contains another one, whose passes nobody can count."""
        place = {instruction.address: i for i, instruction in enumerate(self.body)}
        count, before = [None] * len(self.body), [None] * len(self.body)
        count[0] = 1
        for i, instruction in enumerate(self.body[:-1]):
            if count[i] is None:
                continue
            target, following = instruction.branches_to(), []
            if target is not None and self.begin <= target <= self.end:
                if target <= instruction.address:
                    if target == self.begin:
                        continue  # another way back
                    raise ValueError(f"a loop within the loop, back to {target:#x}")
                following.append(place[target])
            if not instruction.ends_here():
                following.append(i + 1)
            for j in following:
                if count[j] is None or count[i] + 1 > count[j]:
                    count[j], before[j] = count[i] + 1, i
        way, i = [], len(self.body) - 1
        if count[i] is None:
            raise ValueError("the branch back is never reached")
        while i is not None:
            way.append(self.body[i])
            i = before[i]
        return way[::-1]


def copies(way):
    """The vectors that instructions copy to shared memory."""
    return sum(COPY.match(instruction.opcode) is not None for instruction in way)


def copies_under_way(way):
    """The vectors on their way to shared memory while a pass works on one group of copies: those of all groups for which it
    does not wait."""
    groups = [int(found.group(1), 16) for instruction in way if instruction.opcode == "DEPBAR.LE"
              and (found := re.search(r"SB0, 0x([0-9a-f]+)$", instruction.operands))]
    return copies(way) * min(groups, default=0)


def streaming_loops(code):
    """The innermost loops that load or copy vectors: [Loop]."""
    place = {instruction.address: i for i, instruction in enumerate(code)}
    spans = {}  # first: last
    for i, instruction in enumerate(code):
        target = instruction.branches_to()
        if target is not None and target < instruction.address:
            spans[place[target]] = max(i, spans.get(place[target], 0))
    loops = [Loop(code, first, last) for first, last in spans.items()]
    loading = [loop for loop in loops if copies(loop.body) or any(i.opcode.startswith(VECTOR_LOAD) for i in loop.body)]
    return [loop for loop in loading if not any(loop.contains(other) for other in loading)]


def loads_under_way(way):
    """The vector loads that a pass issues before it uses the first of them."""
    loads, loaded = 0, set()
    for instruction in way:
        if instruction.opcode.startswith(VECTOR_LOAD):
            first = int(re.match(r"R(\d+)", instruction.operands).group(1))
            loaded |= set(range(first, first + 4))
            loads += 1
        elif loaded & instruction.registers():
            break
    return loads
