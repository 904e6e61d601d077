"""sass.py counts what it says, on a few made-up kernels."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sass  # noqa: E402


def loops(*lines):
    text = "\tFunction : kernel\n" + "".join(f"        /*{16 * i:04x}*/   {line} ;   /* 0x00 */\n" for i, line in enumerate(lines))
    return sass.streaming_loops(sass.functions(text)["kernel"])


def longest(*lines):
    [loop] = loops(*lines)
    return loop.longest_pass()


STREAM = ["MOV R2, R3",                             # 00
          "LDG.E.128 R4, desc[UR6][R2.64]",         # 10
          "LDG.E.128 R8, desc[UR6][R2.64+0x200]",   # 20
          "FADD R12, R4, R12",                      # 30
          "@!P0 FADD R12, R8, R12",                 # 40
          "@P1 BRA 0x10",                           # 50
          "EXIT"]                                   # 60


def test_a_pass_counts_every_instruction_of_a_loop_predicated_or_not():
    assert [i.address for i in longest(*STREAM)] == [0x10, 0x20, 0x30, 0x40, 0x50]


def test_loads_are_under_way_until_the_first_of_them_is_used():
    assert sass.loads_under_way(longest(*STREAM)) == 2
    one_by_one = [STREAM[i] for i in (0, 1, 3, 2, 4, 5, 6)]
    assert sass.loads_under_way(longest(*one_by_one)) == 1


def test_of_two_branches_the_longer_one_counts():
    way = longest("LDG.E.128 R4, desc[UR6][R2.64]",  # 00
                  "@P0 BRA 0x40",                    # 10
                  "FADD R12, R4, R12",               # 20
                  "BRA 0x70",                        # 30
                  "FADD R12, R5, R12",               # 40
                  "FADD R12, R6, R12",               # 50
                  "FADD R12, R7, R12",               # 60
                  "@P1 BRA 0x0",                     # 70
                  "EXIT")
    assert [i.address for i in way] == [0x00, 0x10, 0x40, 0x50, 0x60, 0x70]


def test_a_branch_out_of_the_loop_is_no_part_of_a_pass():
    way = longest("LDG.E.128 R4, desc[UR6][R2.64]", "@P0 BRA 0x40", "FADD R12, R4, R12", "@P1 BRA 0x0", "EXIT")
    assert len(way) == 4


def test_a_loop_within_the_loop_cannot_be_counted():
    with pytest.raises(ValueError, match="a loop within the loop, back to 0x10"):
        longest("LDG.E.128 R4, desc[UR6][R2.64]", "FADD R12, R4, R12", "@P0 BRA 0x10", "@P1 BRA 0x0", "EXIT")


def test_copies_are_under_way_in_the_groups_for_which_nothing_waits():
    def way(wait):
        return [sass.Instruction(16 * i, None, opcode, operands) for i, (opcode, operands) in enumerate(
            [("LDGSTS.E.BYPASS.128", "[R1], desc[UR8][R2.64]"), ("LDGSTS.E.BYPASS.128", "[R3], desc[UR8][R4.64]"),
             ("LDGDEPBAR", ""), ("DEPBAR.LE", wait), ("LDS.128", "R8, [R5]")])]

    assert sass.copies_under_way(way("SB0, 0x3")) == 6
    assert sass.copies_under_way(way("SB0, 0x0")) == 0
    assert sass.copies_under_way(way("SB0, 0x3")[3:]) == 0


def test_loops_that_load_no_vectors_are_left_out():
    assert loops("LDG.E R4, desc[UR6][R2.64]", "@P1 BRA 0x0", "EXIT") == []
