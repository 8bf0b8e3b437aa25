"""Docstrings and signatures as the reference shows them."""

import re
from collections.abc import Iterator
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Show sections named `Example` as code, as sections named `Examples` are."""

    def on_object(self, *, obj: griffe.Object, **unused: Any) -> None:
        """Rename the section before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )


class Fields(griffe.Extension):
    """Show the fields of records in one list, and settings with their defaults alone."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **unused: Any) -> None:
        """Replace the declaration of a setting (see gumbeltree/settings.py) by its default."""
        call = attr.value
        name = str(call.function) if isinstance(call, griffe.ExprCall) else ""
        if isinstance(call, griffe.ExprCall) and name in ("setting", "part"):
            attr.value = call.arguments[name == "part"]
        elif isinstance(call, griffe.ExprCall) and name == "kind_of":
            given = {"default": call.arguments[0], "kw_only": "True"}
            keywords = [griffe.ExprKeyword(key, value) for key, value in given.items()]
            attr.value = griffe.ExprCall(griffe.ExprName("field", attr.module), keywords)

    def on_package(self, *, pkg: griffe.Module, **unused: Any) -> None:
        """Collect the fields when all base classes are known."""
        found = list(classes(pkg))
        listed = {cls.path: fields(cls) for cls in found}
        for cls in found:
            if any(str(base) == "NamedTuple" for base in cls.bases):
                cls.set_member("__init__", constructor(cls))
            if listed[cls.path] and cls.docstring is not None:
                section = [f"{typed(f)}: {words_of(f)}" for f in listed[cls.path]]
                cls.docstring.value += "\n\nAttributes:\n    " + "\n    ".join(section)
        for cls in found:
            for field in listed[cls.path]:
                field.docstring = None


def classes(scope: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    """Yield the classes of a module and of its parts."""
    for member in scope.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from classes(member)


def fields(cls: griffe.Class) -> list[griffe.Attribute]:
    """Return the attributes of a class that have a docstring; inherited ones come first."""
    lines = [*reversed(cls.mro()), cls] if "dataclass" in decorators(cls) else [cls]
    found = {
        name: member
        for line in lines
        for name, member in line.members.items()
        if isinstance(member, griffe.Attribute) and "property" not in member.labels
    }
    return [f for f in found.values() if f.docstring is not None and not f.name.startswith("_")]


def decorators(cls: griffe.Class) -> set[str]:
    """Return the names of the decorators of a class."""
    return {decorator.callable_path.rpartition(".")[2] for decorator in cls.decorators}


def typed(field: griffe.Attribute) -> str:
    """Return the name of a field with its type, if declared."""
    return field.name if field.annotation is None else f"{field.name} ({field.annotation})"


def words_of(field: griffe.Attribute) -> str:
    """Return the docstring of a field as one line."""
    return " ".join(field.docstring.value.split()) if field.docstring else ""


def constructor(cls: griffe.Class) -> griffe.Function:
    """Return the constructor of a named tuple."""
    kind = griffe.ParameterKind.positional_or_keyword
    parameters = [griffe.Parameter("self", kind=kind)]
    for name, member in cls.members.items():
        if isinstance(member, griffe.Attribute) and "property" not in member.labels:
            field = griffe.Parameter(name, kind=kind)
            field.annotation, field.default = member.annotation, member.value
            parameters.append(field)
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters), parent=cls)
