"""Reads and writes Excel files (.xlsx), with openpyxl, which the extra `excel` installs.

A sheet is read as if it had been saved as CSV: every cell becomes the text that Excel's CSV has for it, so that a model
that was trained on one of the two can read the other. Rows are read and written one at a time.

Nothing that is written can be run as a formula: every text is stored as a text, whatever it begins with.
"""

import datetime
import logging
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_repro.errors import UserError

logger = logging.getLogger("bert_repro")

LONGEST_CELL = 32_767  # characters, Excel's limit
MOST_ROWS = 1_048_576  # of a sheet, with the row of column names
MOST_COLUMNS = 16_384
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Control characters, which an Excel file cannot contain."""
_REPLACEMENT = "\ufffd"


# --- Reading ----------------------------------------------------------------------------------------------------------


def sheet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of the first sheet with their numbers, as Excel counts them.

    Empty rows, and columns without a name and content at the right end, are left out. All rows have as many fields as
    the first one, which contains the column names.

    Raises:
        UserError: openpyxl is not installed, or the file is not an Excel file.
    """
    # One reading has the results of formulas, the other one the formulas.
    workbook, formulas = _open(path, data_only=True), _open(path, data_only=False)
    try:
        sheets = workbook.worksheets
        if not sheets:
            raise UserError(f"{path} has no sheet with cells.")
        if len(sheets) > 1:
            others = ", ".join(sheet.title for sheet in sheets[1:])
            logger.info(
                "%s: reading the first sheet, %r. To read another (%s), move it to the front.",
                path,
                sheets[0].title,
                others,
            )
        yield from _table_rows(path, _cells(path, sheets[0], formulas.worksheets[0]))
    except (KeyError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
        # The parser of XML raises a SyntaxError.
        if isinstance(error, UserError):
            raise
        raise _damaged(path, error) from None
    finally:
        workbook.close()
        formulas.close()


def _open(path: Path, *, data_only: bool) -> Any:
    openpyxl = _openpyxl(path)
    try:
        workbook = openpyxl.load_workbook(path, read_only=True, data_only=data_only)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Check the path.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}). Close it in Excel and try again.") from None
    except (KeyError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from None
    for sheet in workbook.worksheets:
        # Some programs write a size that is too small, and only cells inside it would be read.
        sheet.reset_dimensions()
    return workbook


def _openpyxl(path: Path) -> Any:
    try:
        import openpyxl
    except ImportError:
        raise UserError(
            f"{path}: Excel files need the package openpyxl. Install it with `pip install 'bert-repro[excel]'` (or "
            "`pip install openpyxl`), or save the sheet as CSV."
        ) from None
    return openpyxl


def _damaged(path: Path, error: Exception) -> UserError:
    # Old .xls files with a new name, and files with a password, are not zip archives.
    return UserError(
        f"{path} is not an Excel file of the format .xlsx ({type(error).__name__}: {error}). Open it in Excel and save "
        "it as .xlsx without a password, or as CSV."
    )


def _cells(path: Path, results: Any, formulas: Any) -> Iterator[list[Any]]:
    """Yields the values of each row of a sheet.

    A formula that no program has computed has no result. pandas writes such cells for texts that begin with =, so the
    cell is read as that text, with a warning.

    Args:
        path: the file, for the warning.
        results: the sheet with the results of formulas.
        formulas: the same sheet with the formulas.
    """
    num_without_result = 0
    example = ""
    rows = zip(results.iter_rows(values_only=True), formulas.iter_rows(values_only=True), strict=True)
    for values, texts in rows:
        cells = list(values)
        for column, (value, text) in enumerate(zip(values, texts, strict=True)):
            if value is None and text is not None:
                cells[column] = text
                num_without_result += 1
                example = str(text)
        yield cells
    if num_without_result:
        logger.warning(
            "%s: %d cells are formulas without a result, for example %r. They are read as texts. If they are formulas, "
            "open the file in Excel and save it.",
            path,
            num_without_result,
            example[:60],
        )


def _table_rows(path: Path, rows: Iterable[list[Any]]) -> Iterator[tuple[int, list[str]]]:
    num_columns: int | None = None
    for number, cells in enumerate(rows, start=1):
        fields = [_text_of(cell) for cell in cells]
        if not any(field.strip() for field in fields):
            continue
        while fields and not fields[-1]:
            fields.pop()
        # The first row that is not empty contains the names of the columns.
        if num_columns is None:
            num_columns = len(fields)
        if len(fields) > num_columns:
            raise UserError(
                f"{path}, row {number}: there is a cell in column {len(fields)}, but the first row names only "
                f"{num_columns} columns. Write the names of all columns into the first row, and remove other rows "
                "above it."
            )
        yield number, fields + [""] * (num_columns - len(fields))


def _text_of(value: Any) -> str:
    """Returns the text that Excel's CSV has for a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    # Excel stores all numbers as floating-point numbers.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        # A date has the time of midnight.
        has_time = value.time() != datetime.time()
        return value.isoformat(" ", "seconds") if has_time else value.date().isoformat()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


# --- Writing ----------------------------------------------------------------------------------------------------------


def require_writable(path: Path, num_rows: int) -> None:
    """Refuses an Excel file that could not be written, before anything is computed for it.

    Args:
        path: the file.
        num_rows: rows to write, without the row of column names.

    Raises:
        UserError: openpyxl is not installed, or there are more rows than a sheet can have.
    """
    _openpyxl(path)
    if num_rows >= MOST_ROWS:
        raise UserError(
            f"{path}: a sheet has at most {MOST_ROWS - 1:,} rows, but there are {num_rows:,}. Write a .csv or .parquet "
            "file.",
            setting="output_file",
        )


def write_sheet(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes an Excel file with one sheet.

    Args:
        path: the file.
        columns: the names of the columns.
        rows: texts, numbers, booleans or None. Control characters become U+FFFD, and texts longer than a cell can hold
            are cut; both are logged.

    Raises:
        UserError: openpyxl is not installed, or there are too many columns.
    """
    openpyxl = _openpyxl(path)
    if len(columns) > MOST_COLUMNS:
        raise UserError(
            f"{path}: a sheet has at most {MOST_COLUMNS:,} columns, but there are {len(columns):,}. Write a .csv or "
            ".parquet file."
        )
    workbook = openpyxl.Workbook(write_only=True)
    sheet = workbook.create_sheet("predictions")
    # The column names stay visible while scrolling.
    sheet.freeze_panes = "A2"
    cells = _Cells(openpyxl.cell.WriteOnlyCell, sheet)
    sheet.append(cells.row(columns))
    for row in rows:
        sheet.append(cells.row(row))
    workbook.save(path)
    cells.log_changes(path)


class _Cells:
    """Makes the cells of a sheet, and counts the texts that had to be changed.

    Args:
        cell_class: openpyxl's class of a cell.
        sheet: the sheet.
    """

    def __init__(self, cell_class: Any, sheet: Any) -> None:
        self._cell_class = cell_class
        self._sheet = sheet
        self._num_shortened = 0
        self._num_replaced = 0

    def row(self, values: Sequence[Any]) -> list[Any]:
        """Returns the cells of a row."""
        return [self._cell(value) for value in values]

    def _cell(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = _NOT_IN_XML.sub(_REPLACEMENT, value)
        self._num_replaced += text != value
        # openpyxl would cut a long text without a word.
        self._num_shortened += len(text) > LONGEST_CELL
        cell = self._cell_class(self._sheet, text[:LONGEST_CELL])
        # openpyxl takes a text that begins with = for a formula.
        cell.data_type = "s"
        return cell

    def log_changes(self, path: Path) -> None:
        """Warns about texts that are not in the file as they were."""
        if self._num_shortened:
            logger.warning(
                "%s: %d texts are cut to %d characters, the most that a cell can hold. A .csv or .parquet file "
                "contains them whole.",
                path,
                self._num_shortened,
                LONGEST_CELL,
            )
        if self._num_replaced:
            logger.warning(
                "%s: control characters in %d texts are replaced by U+FFFD, because Excel cannot store them.",
                path,
                self._num_replaced,
            )
