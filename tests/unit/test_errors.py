"""What a terminal obeys, or what hides how a text reads, is shown escaped."""

from __future__ import annotations

from hookline.scripts.csv_text import csv_text
from hookline.trainer.errors import UserError, one_line, printable, unknown_name


def test_a_name_is_shown_as_it_is_written():
    for text, shown in (
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("cat\u202egnp.exe", r"cat\u202egnp.exe"),
        ("a\r\nb\u2028c\x9b", r"a\r\nb\u2028c\x9b"),
        ("\udcff", r"\udcff"),  # a byte of a file name that is no UTF-8
        ("Über ÄÖ 猫　x🐈 %\\n", "Über ÄÖ 猫　x🐈 %\\n"),
    ):
        assert printable(text) == shown
    assert "'adam'" in str(unknown_name("optimizer", "adm", ["sgd", "adam"]))


def test_a_message_is_one_line_of_print():
    assert str(UserError("The class 'a\n\x1b[31mb' is\tunknown.")) == r"The class 'a \x1b[31mb' is unknown."
    assert one_line("a\n b") == "a b"
    assert printable("a\n\x1b", keep="\n") == "a\n\\x1b"


def test_a_cell_of_a_table_is_neither_a_formula_nor_a_second_row():
    rows = [["=1+2", "+x", "@a", "-3.5", -3.5, "a\nb", 'say "x"'], ["-", "0", "1e-3", "-cmd|' /C", "Ä", "\u202e", None]]
    assert csv_text(rows) == ('\'=1+2,\'+x,\'@a,-3.5,-3.5,a\\nb,"say ""x"""\n' + "-,0,1e-3,'-cmd|' /C,Ä,\\u202e,\n")
