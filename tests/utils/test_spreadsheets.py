"""Excel files: a sheet means what its CSV means, and nothing that is written is a formula."""

import builtins
import datetime
import logging

import openpyxl
import pandas as pd
from errors import user_error

from bert_repro.tasks.data import read_file
from bert_repro.utils import spreadsheets
from bert_repro.utils.spreadsheets import sheet_rows, write_sheet


def save(path, *sheets):
    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for number, rows in enumerate(sheets):
        sheet = workbook.create_sheet(f"sheet {number}")
        for row in rows:
            sheet.append(row)
    workbook.save(path)
    return path


def test_cells_read_as_in_csv(tmp_path):
    day = datetime.datetime(2024, 5, 1)
    row = ["Tür", 7, 7.0, 0.5, True, day, day.replace(hour=9), None, "2\nlines"]
    path = save(tmp_path / "x.xlsx", [list("abcdefghi"), row])
    assert read_file(path)[0] == dict(
        zip(
            "abcdefghi",
            ["Tür", "7", "7", "0.5", "TRUE", "2024-05-01", "2024-05-01 09:00:00", "", "2\nlines"],
            strict=True,
        )
    )


def test_empty_rows_and_columns_are_no_data(tmp_path):
    rows = [[None, None], ["text", "label", None], ["a", "x"], [None, None], ["b", None], ["", "  "], [None]]
    path = save(tmp_path / "x.xlsx", rows)
    assert list(sheet_rows(path)) == [(2, ["text", "label"]), (3, ["a", "x"]), (5, ["b", ""])]


def test_other_sheets_are_named(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "bert_repro"):
        assert read_file(save(tmp_path / "x.xlsx", [["text"], ["a"]], [["note"]]))["text"][:] == ["a"]
    assert "sheet 0" in caplog.text and "sheet 1" in caplog.text


def test_what_is_no_table_is_refused(tmp_path):
    with user_error("row 2", "first row names only 1"):
        read_file(save(tmp_path / "title.xlsx", [["Tickets of May"], ["text", "label"], ["a", "b"]]))
    with user_error("no rows"):
        read_file(save(tmp_path / "names.xlsx", [["text", "label"]]))
    path = tmp_path / "old.xlsx"
    path.write_bytes(b"\xd0\xcf\x11\xe0" * 300)
    with user_error(path, ".xlsx", "CSV"):
        read_file(path)
    for name in ("x.xls", "x.ods"):
        (tmp_path / name).write_bytes(b"a")
        with user_error(name, "Save the sheet as .xlsx"):
            read_file(tmp_path / name)


def test_texts_are_never_formulas_and_losses_are_said(tmp_path, caplog):
    path = tmp_path / "x.xlsx"
    rows = [["=1+1", 0.25], ["a\x07b", None], ["x" * 40_000, 3], ["@SUM(A1)", True]]
    with caplog.at_level(logging.WARNING, "bert_repro"):
        write_sheet(path, ["text", "=n"], rows)
    cells = list(openpyxl.load_workbook(path).active.iter_rows())
    assert {cell.data_type for row in cells for cell in row} <= {"s", "n", "b"}
    assert [cell.value for cell in cells[1]] == ["=1+1", 0.25] and cells[2][0].value == "a\ufffdb"
    assert "1 texts are cut to 32767" in caplog.text and "control characters in 1 texts" in caplog.text


def test_without_openpyxl_the_package_is_named(tmp_path, monkeypatch):
    path = save(tmp_path / "x.xlsx", [["text"], ["a"]])
    find = builtins.__import__

    def without(name, *arguments, **options):
        if name == "openpyxl":
            raise ImportError(name)
        return find(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with user_error(path, "bert-repro[excel]"):
        read_file(path)
    with user_error("bert-repro[excel]"):
        spreadsheets.require_writable(path, 1)


def test_a_sheet_that_would_be_too_long_is_refused_at_once(tmp_path):
    with user_error("1,048,575", "2,000,000", setting="output_file"):
        spreadsheets.require_writable(tmp_path / "x.xlsx", 2_000_000)


def test_a_text_that_pandas_wrote_as_a_formula_is_not_lost(tmp_path, caplog):
    path = tmp_path / "x.xlsx"
    pd.DataFrame({"text": ["=== error ===", "fine"]}).to_excel(path, index=False)
    with caplog.at_level(logging.WARNING, "bert_repro"):
        assert read_file(path)["text"][:] == ["=== error ===", "fine"]
    assert "1 cells are formulas" in caplog.text
