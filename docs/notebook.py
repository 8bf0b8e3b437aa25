"""Run the cells of notebook.ipynb in order and store their outputs in the file.

`make notebook` runs this script. It needs no Jupyter: cells are plain Python, except for the
function `display`.
"""

import ast
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("notebook.ipynb")


class CellOutput(io.TextIOBase):
    """Standard output of one cell, recorded together with what the cell displays."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[dict[str, Any]] = []

    def write(self, text: str) -> int:
        """Record printed text, as part of the last output if that is text, too."""
        if not self.outputs or self.outputs[-1]["output_type"] != "stream":
            self.outputs.append({"output_type": "stream", "name": "stdout", "text": ""})
        self.outputs[-1]["text"] += text
        return len(text)

    def display(self, *values: Any) -> None:
        """Record values as Jupyter displays them."""
        for value in values:
            output = {"output_type": "display_data", "metadata": {}, "data": representations(value)}
            self.outputs.append(output)

    def stored(self) -> list[dict[str, Any]]:
        """Return the outputs as they are stored: texts as lists of lines."""
        for output in self.outputs:
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
            for kind, text in output.get("data", {}).items():
                output["data"][kind] = text.splitlines(keepends=True)
        return self.outputs


def representations(value: Any) -> dict[str, str]:
    """Return a value as text and, if it has a picture or a view, as SVG or HTML."""
    if hasattr(value, "_repr_html_"):
        # its text would list all numbers
        return {"text/plain": f"<{type(value).__name__}>", "text/html": value._repr_html_()}
    found = {"text/plain": repr(value)}
    if hasattr(value, "_repr_svg_"):
        found["image/svg+xml"] = value._repr_svg_()
    return found


def run(notebook: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Run the code cells of a notebook, replace their outputs, and return all variables.

    Args:
        notebook: the content of the file, which is changed.
        parameters: values that replace those of the cell with the tag `parameters`.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        code = ast.parse("".join(cell["source"]), f"cell {count}")
        last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
        output = CellOutput()
        space["display"] = output.display
        with contextlib.redirect_stdout(output):
            exec(compile(code, f"cell {count}", "exec"), space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), space)
                if value is not None:
                    output.display(value)
                    output.outputs[-1] |= {"output_type": "execute_result"}
                    output.outputs[-1] |= {"execution_count": count}
        if "parameters" in cell["metadata"].get("tags", ()):
            space |= parameters
        cell |= {"execution_count": count, "outputs": output.stored()}
    return space


def main() -> None:
    """Run the notebook in an empty folder and write it back."""
    notebook = json.loads(PATH.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    PATH.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
